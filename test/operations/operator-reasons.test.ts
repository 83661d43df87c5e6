// Who reads what of a failing model server. Everybody: the status, in our words. The owner of a line: what the server
// said about that line. Operators: all of it, at GET /v1/status. The log: nothing that a server said.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import type { Scope } from '../../src/domain/api-key.ts'
import type { Log } from '../../src/domain/log.ts'
import type { ServiceStatus } from '../../src/wire/status.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch } from '../service.ts'

function collectingLog(): Log & { warnings: string[] } {
  const warnings: string[] = []
  return {
    warnings,
    info() {},
    warn: (fields, text) => warnings.push(JSON.stringify({ ...fields, text })),
    error() {},
  }
}

async function failedLine(base_url: string, log: Log): Promise<string> {
  await using service = await TestService.start(configFor(base_url), { log })
  const batch = await service.run([line('a')])
  const [failed] = await service.lines(batch.error_file_id)
  const record = await service.json('GET', `/v1/requests/${failed!.id}`)
  return JSON.stringify([failed, record])
}

test('a wrong base_url is advice for the log, not for callers', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 404, 'nothing here'))
  const log = collectingLog()
  const told = await failedLine(upstream.base_url, log)
  assert.match(told, /the server does not offer \/v1\/chat\/completions \(404\)/)
  assert.doesNotMatch(told, /base_url/)
  const advice = log.warnings.filter((warning) =>
    warning.includes('a model server failed to answer a request'),
  )
  assert.equal(advice.length, 1, log.warnings.join('\n'))
  assert.match(advice[0]!, /check base_url/)
  assert.doesNotMatch(advice[0]!, /nothing here/, 'what a server says may quote a request')
})

test('the address of a server that is gone is for the log, not for callers', async () => {
  const upstream = await testUpstream()
  await upstream.close()
  const log = collectingLog()
  const told = await failedLine(upstream.base_url, log)
  const address = new URL(upstream.base_url).host
  assert.match(told, /no connection to the server \(ECONNREFUSED\)/)
  assert.ok(log.warnings.some((warning) => warning.includes(address)))
  assert.ok(!told.includes(address), told)
})

const SECRET = 'the patient has scarlet fever'

async function keyOf(service: TestService, project: string, scopes?: Scope[]): Promise<string> {
  const { store } = service.stores
  return (await createKey(store, store.clock, 'local', { project, plan: 'payg', scopes })).key
}

async function created(service: TestService, content: string): Promise<WireBatch> {
  const file = await service.upload(JSON.stringify(line('a', content)))
  return await service.create(file.id)
}

async function waitingFor(service: TestService, id: string, code: string): Promise<string> {
  for (;;) {
    const reason = (await service.get(id)).waiting_reason as { code: string; message: string } | null
    if (reason?.code === code) return reason.message
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

test('a gateway that echoes requests shows no tenant what another one asked', async () => {
  await using upstream = await testUpstream(({ bytes, response }) => {
    if (!bytes.includes(SECRET)) return
    const message = `upstream connect error at gpu-7.internal:8000 (10.1.2.3), request was: ${bytes}`
    send(response, 503, JSON.stringify({ error: { message } }))
  })
  const log = collectingLog()
  const yaml = `
models:
  - {id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}"}]}`
  await using service = await TestService.start(yaml, { log })
  const own = service.key
  const other = await keyOf(service, 'other')
  const operator = await keyOf(service, 'ops', ['operator'])

  const patient = await created(service, SECRET)
  const toOwner = await waitingFor(service, patient.id, 'model_unavailable')
  assert.match(toOwner, /503: upstream connect error at .*request was: .*scarlet fever/)
  assert.doesNotMatch(toOwner, /gpu-7|10\.1\.2\.3/, 'addresses are for operators')

  service.key = other
  const { id } = await created(service, 'held')
  const toOther = await waitingFor(service, id, 'model_unavailable')
  assert.equal(toOther, 'No server of the model m answers: 503')
  const status = await service.json<ServiceStatus>('GET', '/v1/status')
  const live = await service.json<object>('GET', '/v1/live')
  assert.doesNotMatch(JSON.stringify([status, live]), /scarlet|gpu-7|10\.1\.2\.3/)

  service.key = operator
  const { service: all } = await service.json<ServiceStatus>('GET', '/v1/status')
  assert.match(all?.models[0]?.error ?? '', /503: .*gpu-7\.internal:8000 \(10\.1\.2\.3\).*scarlet fever/)
  const reported = async (): Promise<string> => {
    const { service: now } = await service.json<ServiceStatus>('GET', '/v1/status')
    return now?.workers[0]?.upstreams[0]?.last_error ?? (await reported())
  }
  assert.match(await reported(), /503: .*gpu-7\.internal/)
  assert.doesNotMatch(log.warnings.join('\n'), /scarlet|gpu-7/)
  for (const [key, batch] of [
    [other, id],
    [own, patient.id],
  ] as const) {
    service.key = key
    await service.json('POST', `/v1/batches/${batch}/cancel`)
  }
  upstream.reply = echo
  for (const { response } of upstream.calls) response.destroy()
  await service.ended(patient.id)
})

test('records show the names of model servers to callers, and addresses to operators', async () => {
  await using upstream = await testUpstream()
  const host = new URL(upstream.base_url).host
  await using service = await TestService.start(`
models:
  - {id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}"}]}
  - {id: named, upstreams: [{type: openai, name: gpus, base_url: "${upstream.base_url}"}]}`)
  const { id, output_file_id } = await service.run([line('a'), line('b', 'b', { model: 'named' })])
  const [first, second] = await service.lines(output_file_id)
  const shown = async (line_id: string, number: number): Promise<unknown[]> => {
    const record = await service.json<Shown>('GET', `/v1/requests/${line_id}`)
    const { record: same } = await service.json<{ record: Shown }>('GET', `/v1/batches/${id}/lines/${number}`)
    assert.deepEqual([same.upstream, same.attempts], [record.upstream, record.attempts])
    return [record.upstream, record.attempts[0]?.upstream]
  }
  assert.deepEqual(await shown(first!.id, 1), ['server-1', 'server-1'])
  assert.deepEqual(await shown(second!.id, 2), ['gpus', 'gpus'])
  service.key = await service.operatorKey()
  assert.deepEqual(await shown(first!.id, 1), [`${host}/v1`, `${host}/v1`])
})

interface Shown {
  upstream: string
  attempts: { upstream: string }[]
}
