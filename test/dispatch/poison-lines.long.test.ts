// Lines that a model server cannot answer end by themselves, and hold up nobody else's.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { type Call, echo, type Reply, send, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { line, TestService, type WireBatch } from '../service.ts'

/** The pauses are those of a real service, the tests' own patience is not. */
function configFor(upstream: TestUpstream, retry = 'backoff_min: 20ms, backoff_max: 200ms'): string {
  return `
models:
  - {id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}"}]}
retry: {${retry}}
worker: {flush_interval: 20ms}`
}

function isPoison({ body }: Call): boolean {
  return body.messages[0]?.content.startsWith('poison') === true
}

/** Blames nothing in the request, so that it looks like a failure of the server. */
const WORDS = 'CUDA error: an illegal memory access was encountered'

/** Answers every line but poison. */
function poisoned(how: (call: Call) => void): Reply {
  return (call) => (isPoison(call) ? how(call) : echo(call))
}

const ANSWERS: Record<string, (call: Call) => void> = {
  '500': ({ response }) => send(response, 500, JSON.stringify({ error: { message: WORDS } })),
  '502': ({ response }) => send(response, 502, JSON.stringify({ error: { message: WORDS } })),
  '503': ({ response }) => send(response, 503, JSON.stringify({ error: { message: WORDS } })),
  '503 and an hour to wait': ({ response }) =>
    send(response, 503, JSON.stringify({ error: { message: WORDS } }), { 'retry-after': '3600' }),
  'a connection that breaks': ({ response }) => void response.destroy(),
}

async function create(service: TestService, names: string[]): Promise<WireBatch> {
  const file = await service.upload(names.map((name) => JSON.stringify(line(name, name))).join('\n'))
  return await service.create(file.id)
}

const poison = Array.from({ length: 100 }, (_, i) => `poison${i}`)
const healthy = Array.from({ length: 20 }, (_, i) => `fine${i}`)

async function otherTenant(service: TestService): Promise<string> {
  const { key } = await createKey(service.stores.store, systemClock, 'local', {
    project: 'other',
    plan: 'payg',
  })
  return key
}

for (const [name, answer] of Object.entries(ANSWERS)) {
  test(`a hundred lines that a server answers with ${name} do not hold up another tenant's twenty`, async () => {
    await using upstream = await testUpstream(poisoned(answer))
    await using service = await TestService.start(configFor(upstream))
    const bad = await create(service, poison)
    const circuit = service.worker.lanes.get('m')!.upstreams[0]!.circuit
    // They have opened the circuit, or have ended already.
    while (circuit.closed && (await service.get(bad.id)).request_counts.failed < poison.length)
      await new Promise((resolve) => setImmediate(resolve))
    const first = service.key
    service.key = await otherTenant(service)
    // The test's own time limit is far below the time for which an unreachable server is waited for.
    const good = await service.ended((await create(service, healthy)).id)
    assert.deepEqual(good.request_counts, { total: 20, completed: 20, failed: 0 })
    service.key = first
    if (name.includes('hour')) return
    const ended = await service.ended(bad.id)
    assert.deepEqual(ended.request_counts, { total: 100, completed: 0, failed: 100 })
    const errors = await service.lines(ended.error_file_id)
    const said = name.includes('breaks') ? /closed the connection|hang up|reset/ : /illegal memory access/
    for (const { error } of errors) {
      assert.match(error?.message ?? '', said)
      // The same 500 again and again, while the other tenant's lines are answered.
      if (name === '500' && error?.code === 'upstream_rejected') continue
      assert.equal(error?.code, 'upstream_unavailable')
      // Throttled lines get more of them, until it is clear that they alone find no room.
      const attempts = Number(/after (\d+) attempts/.exec(error?.message ?? '')?.[1])
      assert.ok(attempts >= 5 && attempts <= (name === '503' ? 20 : 7), error?.message)
    }
  })
}

test('a few such lines among many of one batch end after a few attempts, while the others are answered', async () => {
  await using upstream = await testUpstream(poisoned(ANSWERS['a connection that breaks']!))
  await using service = await TestService.start(configFor(upstream))
  // Lines are sent in the order of their contents. Answers to lines sent later show that the server was up; without
  // any, broken connections may be those of a server that went down, and are waited for.
  const fine = (i: number): string => (i < 200 ? `fine${i}` : `z${i}`)
  const names = Array.from({ length: 2_000 }, (_, i) => (i % 200 === 7 ? `poison${i}` : fine(i)))
  const { id } = await create(service, names)
  assert.deepEqual((await service.ended(id)).request_counts, { total: 2_000, completed: 1_990, failed: 10 })
  assert.ok(upstream.calls.length < 1_990 + 10 * 8)
})

test('a batch that begins with a hundred such lines gets to the others', async () => {
  await using upstream = await testUpstream(poisoned(ANSWERS['500']!))
  await using service = await TestService.start(configFor(upstream))
  const names = [...poison, ...Array.from({ length: 900 }, (_, i) => `z${i}`)]
  const { id } = await create(service, names)
  assert.deepEqual((await service.ended(id)).request_counts, { total: 1_000, completed: 900, failed: 100 })
})

for (const how of ['gone', 'behind a proxy', 'behind a port that closes connections'] as const) {
  test(`a server that restarts ${how} costs no line of two batches`, async () => {
    let isDown = false
    const reply: Reply = (call) => {
      if (!isDown) return echo(call)
      if (how === 'behind a proxy') send(call.response, 502, '')
      else call.response.destroy()
    }
    await using upstream = await testUpstream(reply)
    const port = Number(new URL(upstream.base_url).port)
    await using service = await TestService.start(
      configFor(upstream, 'attempts_max: 2, backoff_min: 5ms, backoff_max: 20ms'),
    )
    const first = await create(
      service,
      Array.from({ length: 2_000 }, (_, i) => `a${i}`),
    )
    await upstream.arrived(100)
    isDown = true
    if (how === 'gone') await upstream.close()
    const key = service.key
    service.key = await otherTenant(service)
    const second = await create(service, healthy)
    const { circuit } = service.worker.lanes.get('m')!.upstreams[0]!
    // The pauses have grown: it was down for many attempts.
    while ((circuit.retryAt ?? 0) < Date.now() + 1_500)
      await new Promise((resolve) => setTimeout(resolve, 20))
    isDown = false
    await using _back = how === 'gone' ? await testUpstream(reply, port) : null
    assert.equal((await service.ended(second.id)).request_counts.completed, 20)
    service.key = key
    assert.equal((await service.ended(first.id)).request_counts.completed, 2_000)
  })
}
