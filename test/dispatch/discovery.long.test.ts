// Upstreams with `discover: dns`: replicas behind one name come and go, and nothing is lost.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { dnsServer } from '../fakes/dns-server.ts'
import { type Call, echo, testUpstream } from '../fakes/upstream.ts'
import { line, TestService } from '../service.ts'

test('each address is an upstream; one that leaves finishes its lines, one that joins takes some', async () => {
  const held: Call[] = []
  let holds = true
  const hold = (call: Call): void => {
    if (holds) held.push(call)
    else echo(call)
  }
  await using first = await testUpstream(hold)
  const port = Number(new URL(first.base_url).port)
  await using second = await testUpstream(hold, port, '127.0.0.2')
  await using third = await testUpstream(hold, port, '127.0.0.3')
  await using dns = await dnsServer(['127.0.0.1', '127.0.0.2'])
  const changes: string[][] = []
  const waiting: (() => void)[] = []
  const log = {
    info(fields: object) {
      if (!('addresses' in fields) || !Array.isArray(fields.addresses)) return
      changes.push(fields.addresses)
      for (const resolve of waiting.splice(0)) resolve()
    },
    warn() {},
    error() {},
  }
  const changed = async (count: number): Promise<void> => {
    while (changes.length < count) await new Promise<void>((resolve) => waiting.push(resolve))
  }
  await using service = await TestService.start(
    `
models:
  - id: m
    upstreams:
      - {type: openai, base_url: "http://models.test:${port}/v1", name: pods, discover: dns, concurrency_max: 4}
worker: {flush_interval: 20ms}
`,
    { log, discovery: { resolve: dns.resolve, everyMs: 100 } },
  )
  await changed(1)
  const file = await service.upload(
    Array.from({ length: 40 }, (_, i) => JSON.stringify(line(`l${i}`))).join('\n'),
  )
  const { id } = await service.create(file.id)
  await Promise.all([first.arrived(4), second.arrived(4)])
  assert.equal(held[0]?.response.req.headers.host, `models.test:${port}`)

  dns.answer = ['127.0.0.2', '127.0.0.3']
  await changed(2)
  await third.arrived(4)
  assert.equal(first.calls.length, 4)

  // An answer that is empty for a while changes nothing.
  dns.answer = []
  holds = false
  for (const call of held) echo(call)
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 40, completed: 40, failed: 0 })
  assert.equal(first.calls.length, 4)
  assert.equal(first.calls.length + second.calls.length + third.calls.length, 40)
  assert.deepEqual(changes, [
    ['127.0.0.1', '127.0.0.2'],
    ['127.0.0.2', '127.0.0.3'],
  ])
  const [one] = await service.lines(batch.output_file_id)
  service.key = await service.operatorKey()
  const record = await service.json<{ attempts: { upstream: string }[] }>('GET', `/v1/requests/${one?.id}`)
  assert.match(record.attempts[0]?.upstream ?? '', /^pods@127\.0\.0\.[123]$/)
})
