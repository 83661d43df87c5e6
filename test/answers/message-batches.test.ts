// Anthropic's Message Batches over HTTP, as its SDKs call them, against the whole service before a model server.
import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { lineRequestId } from '../../src/domain/ids.ts'
import { send, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { TestService } from '../service.ts'
import { parsedLines } from '../support/api.ts'

const VERSION = { 'anthropic-version': '2023-06-01' }
const BATCHES = '/v1/messages/batches'

interface Batch {
  id: string
  processing_status: string
  request_counts: Record<string, number>
  [key: string]: unknown
}

interface Result {
  custom_id: string
  result: { type: string; message?: unknown; error?: { type: string; error: Record<string, unknown> } }
}

interface Page {
  data: Batch[]
  has_more: boolean
  first_id: string | null
  last_id: string | null
}

class Client {
  readonly service: TestService
  key: string

  constructor(service: TestService) {
    this.service = service
    this.key = service.key
  }

  async call(method: string, path: string, body?: string, headers: Record<string, string> = {}) {
    const answer = await fetch(`${this.service.url}${path}`, {
      method,
      headers: {
        ...VERSION,
        'x-api-key': this.key,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body }),
    })
    const text = await answer.text()
    return { status: answer.status, headers: answer.headers, text, json: () => JSON.parse(text) }
  }

  async batch(method: string, path: string, body?: string): Promise<Batch> {
    const { status, text, json } = await this.call(method, path, body)
    assert.equal(status, 200, text)
    return json()
  }

  async create(requests: Record<string, object>): Promise<Batch> {
    const all = Object.entries(requests).map(([custom_id, params]) => ({ custom_id, params }))
    return await this.batch('POST', BATCHES, JSON.stringify({ requests: all }))
  }

  async list(query: string): Promise<Page> {
    const { json } = await this.call('GET', `${BATCHES}?${query}`)
    return json()
  }

  async results(id: string): Promise<Result[]> {
    const { status, text } = await this.call('GET', `${BATCHES}/${id}/results`)
    assert.equal(status, 200, text)
    return parsedLines(text)
  }
}

async function start(
  t: TestContext,
): Promise<{ service: TestService; client: Client; upstream: TestUpstream }> {
  const upstream = await testUpstream()
  const upstreams = `upstreams: [{type: openai, base_url: "${upstream.base_url}", timeout: 5s}]`
  const service = await TestService.start(`
models: [{id: m, endpoints: [messages, chat/completions], ${upstreams}}]
retry: {attempts_max: 1, outage_patience: 0ms}
worker: {flush_interval: 20ms, lease: 2s}`)
  t.after(async () => {
    await service[Symbol.asyncDispose]()
    await upstream.close()
  })
  return { service, client: new Client(service), upstream }
}

const params = { model: 'm', max_tokens: 5, messages: [{ role: 'user', content: 'Hi' }] }
const ANSWER =
  '{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"\\u0048i"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2}}'
const RFC_3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/

test('a message batch from its creation to its results, whose bytes are kept on both ways', async (t) => {
  const { service, client, upstream } = await start(t)
  upstream.reply = (call) => send(call.response, 200, ANSWER)
  const weird =
    '{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"\\u00e9"}],"x":1.0,"y":1e400}'
  const lacking = '{"model":"m","messages":[{"role":"user","content":"a"}]}'
  const body = `{"requests":[{"custom_id":"a","params":${weird}},\n{"params":${lacking},"custom_id":"b"}]}`
  const created = await client.batch('POST', `${BATCHES}?beta=true`, body)
  assert.deepEqual(
    [created.type, created.processing_status, created.ended_at, created.results_url, created.archived_at],
    ['message_batch', 'in_progress', null, null, null],
  )
  assert.deepEqual(created.request_counts, {
    processing: 2,
    succeeded: 0,
    errored: 0,
    canceled: 0,
    expired: 0,
  })
  assert.match(String(created.created_at), RFC_3339)
  assert.match(String(created.expires_at), RFC_3339)

  await service.ended(created.id)
  const ended = await client.batch('GET', `${BATCHES}/${created.id}`)
  assert.equal(ended.processing_status, 'ended')
  assert.match(String(ended.ended_at), RFC_3339)
  assert.equal(ended.results_url, `${service.url}${BATCHES}/${created.id}/results`)
  assert.deepEqual(ended.request_counts, { processing: 0, succeeded: 1, errored: 1, canceled: 0, expired: 0 })
  assert.equal(upstream.calls[0]?.bytes.toString(), weird)

  const { text, headers } = await client.call('GET', `${BATCHES}/${created.id}/results`)
  assert.equal(headers.get('content-type'), 'application/x-jsonl')
  const [first = '', second = ''] = text.split('\n')
  const message = ANSWER.replace('}}', ',"cost_usd":0}}')
  assert.equal(first, `{"custom_id":"a","result":{"type":"succeeded","message":${message}}}`)
  const { result }: Result = JSON.parse(second)
  assert.deepEqual([result.type, result.error?.type], ['errored', 'error'])
  assert.deepEqual(result.error?.error, {
    type: 'invalid_request_error',
    message: '`max_tokens` is missing.',
    details: { error_code: 'invalid_request', param: 'max_tokens' },
  })

  // It is an ordinary batch of a file that is listed like any other.
  const batch = await service.json<Record<string, string>>('GET', `/v1/batches/${created.id}`)
  assert.deepEqual([batch.endpoint, batch.completion_window], ['/v1/messages', '24h'])
  const files = await service.json<{ data: { id: string; filename: string }[] }>(
    'GET',
    '/v1/files?purpose=batch',
  )
  assert.deepEqual([files.data[0]?.id, files.data[0]?.filename], [batch.input_file_id, 'requests.jsonl'])

  // Where a part of the results was deleted, the rest is not taken for all of them.
  await service.request('DELETE', `/v1/files/${batch.error_file_id}`)
  const archived = await client.batch('GET', `${BATCHES}/${created.id}`)
  assert.match(String(archived.archived_at), RFC_3339)
  assert.equal(archived.results_url, null)
  const refused = await client.call('GET', `${BATCHES}/${created.id}/results`)
  assert.equal(refused.status, 404)
  assert.match(refused.text, /a part of them.*`GET \/v1\/batches\/\{batch_id\}\/results`/)
})

test('lists have the batches of messages alone, newest first, in pages of both directions', async (t) => {
  const { service, client } = await start(t)
  const ids: string[] = []
  for (let i = 0; i < 3; i++) ids.unshift((await client.create({ a: params })).id)
  const line = (url: string) => ({ custom_id: 'a', method: 'POST', url, body: params })
  const other = await service.run([line('/v1/chat/completions')])
  const native = await service.run([line('/v1/messages')], { endpoint: '/v1/messages' })
  ids.unshift(native.id)
  const idsOf = ({ data }: Page): string[] => data.map(({ id }) => id)
  const all = await client.list('')
  assert.deepEqual([idsOf(all), all.has_more, all.first_id, all.last_id], [ids, false, ids[0], ids[3]])
  const first = await client.list('limit=3')
  assert.deepEqual([idsOf(first), first.has_more, first.last_id], [ids.slice(0, 3), true, ids[2]])
  assert.deepEqual(idsOf(await client.list(`limit=3&after_id=${ids[2]}`)), [ids[3]])
  const before = await client.list(`limit=2&before_id=${ids[3]}`)
  assert.deepEqual([idsOf(before), before.has_more, before.first_id], [ids.slice(1, 3), true, ids[1]])
  const newest = await client.list(`limit=2&before_id=${ids[1]}`)
  assert.deepEqual([idsOf(newest), newest.has_more], [[ids[0]], false])
  assert.deepEqual((await client.call('GET', `${BATCHES}/${other.id}`)).status, 404)
  assert.deepEqual(idsOf(await client.list(`before_id=${ids[0]}&after_id=${ids[2]}`)), [ids[3]])
  for (const query of ['limit=0', 'limit=1001', 'order=asc'])
    assert.equal((await client.call('GET', `${BATCHES}?${query}`)).status, 400, query)
  assert.equal((await client.call('GET', `${BATCHES}?after_id=${other.id}`)).status, 404)
})

test('a request that is cancelled alone ends as canceled', async (t) => {
  const { service, client, upstream } = await start(t)
  const { reply } = upstream
  upstream.reply = () => {}
  const { id } = await client.create({ a: params, b: params })
  await upstream.arrived(2)
  await service.worker.stop()
  upstream.reply = reply
  const cancelled = await service.request('POST', `/v1/requests/${lineRequestId(id, 2)}/cancel`)
  assert.equal(cancelled.status, 200, await cancelled.text())
  await service.restartWorker()
  await service.ended(id)
  const { request_counts } = await client.batch('GET', `${BATCHES}/${id}`)
  assert.deepEqual(request_counts, { processing: 0, succeeded: 1, errored: 0, canceled: 1, expired: 0 })
  assert.deepEqual((await client.results(id))[1], { custom_id: 'b', result: { type: 'canceled' } })
})

test('a cancel ends requests as canceled, and keeps what was answered', async (t) => {
  const { service, client, upstream } = await start(t)
  upstream.reply = () => {}
  const { id } = await client.create({ a: params, b: params })
  await upstream.arrived(2)
  await service.worker.stop()
  const canceling = await client.batch('POST', `${BATCHES}/${id}/cancel`)
  assert.equal(canceling.processing_status, 'canceling')
  assert.match(String(canceling.cancel_initiated_at), RFC_3339)
  await service.restartWorker()
  await service.ended(id)
  const ended = await client.batch('GET', `${BATCHES}/${id}`)
  assert.deepEqual(ended.request_counts, { processing: 0, succeeded: 0, errored: 0, canceled: 2, expired: 0 })
  assert.deepEqual(await client.results(id), [
    { custom_id: 'a', result: { type: 'canceled' } },
    { custom_id: 'b', result: { type: 'canceled' } },
  ])
  // Asking again changes nothing.
  assert.equal((await client.batch('POST', `${BATCHES}/${id}/cancel`)).processing_status, 'ended')
})

test('a deleted batch is gone with its requests and results; its cost stays', async (t) => {
  const { service, client, upstream } = await start(t)
  const answers: (() => void)[] = []
  upstream.reply = (call) => void answers.push(() => send(call.response, 200, ANSWER))
  const { id } = await client.create({ a: params })
  await upstream.arrived(1)
  const early = await client.call('DELETE', `${BATCHES}/${id}`)
  assert.equal(early.status, 422)
  assert.equal(early.json().error.details.error_code, 'batch_not_deletable')
  const unfinished = await client.call('GET', `${BATCHES}/${id}/results`)
  assert.deepEqual([unfinished.status, unfinished.json().error.type], [400, 'invalid_request_error'])
  for (const answer of answers) answer()
  await service.ended(id)
  const { input_file_id, output_file_id } = await service.json<Record<string, string>>(
    'GET',
    `/v1/batches/${id}`,
  )
  assert.deepEqual((await client.call('DELETE', `${BATCHES}/${id}`)).json(), {
    id,
    type: 'message_batch_deleted',
  })
  for (const path of [`${BATCHES}/${id}`, `${BATCHES}/${id}/results`])
    assert.equal((await client.call('GET', path)).status, 404, path)
  assert.equal((await client.call('DELETE', `${BATCHES}/${id}`)).status, 404)
  assert.deepEqual((await client.list('')).data, [])
  for (const file of [input_file_id, output_file_id])
    assert.equal((await service.request('GET', `/v1/files/${file}`)).status, 404)
  const kept = await service.json<{ request_counts: object }>('GET', `/v1/batches/${id}`)
  assert.deepEqual(kept.request_counts, { total: 1, completed: 1, failed: 0 })

  // A file that another batch has is kept.
  const line = { custom_id: 'a', method: 'POST', url: '/v1/messages', body: params }
  upstream.reply = (call) => send(call.response, 200, ANSWER)
  const shared = await service.run([line], { endpoint: '/v1/messages' })
  const order = { input_file_id: shared.input_file_id, endpoint: '/v1/messages', completion_window: '24h' }
  const again = await service.json<{ id: string }>('POST', '/v1/batches', order)
  await client.call('DELETE', `${BATCHES}/${shared.id}`)
  assert.equal((await service.request('GET', `/v1/files/${shared.input_file_id}`)).status, 200)
  await service.ended(again.id)

  // Results whose file was deleted are archived.
  const batch = await service.json<{ output_file_id: string }>('GET', `/v1/batches/${again.id}`)
  await service.request('DELETE', `/v1/files/${batch.output_file_id}`)
  const archived = await client.batch('GET', `${BATCHES}/${again.id}`)
  assert.match(String(archived.archived_at), RFC_3339)
  assert.equal(archived.results_url, null)
  assert.equal((await client.call('GET', `${BATCHES}/${again.id}/results`)).status, 404)
})

test('errors have the form of Anthropic, by status', async (t) => {
  const { service, client } = await start(t)
  const cases: [
    method: string,
    path: string,
    body: string | undefined,
    status: number,
    type: string,
    code: string,
  ][] = [
    ['GET', `${BATCHES}/batch_none`, undefined, 404, 'not_found_error', 'batch_not_found'],
    ['GET', '/v1/messages/nothing', undefined, 404, 'not_found_error', 'unknown_endpoint'],
    ['PUT', BATCHES, undefined, 405, 'invalid_request_error', 'method_not_allowed'],
    ['POST', '/v1/messages', '{}', 404, 'not_found_error', 'unknown_endpoint'],
    ['POST', BATCHES, '{"requests":[]}', 400, 'invalid_request_error', 'invalid_request'],
    [
      'POST',
      BATCHES,
      '{"requests":[{"custom_id":"a","params":{x}}]}',
      400,
      'invalid_request_error',
      'invalid_json',
    ],
    ['POST', BATCHES, undefined, 400, 'invalid_request_error', 'invalid_request'],
  ]
  for (const [method, path, body, status, type, code] of cases) {
    const answer = await client.call(method, path, body)
    assert.equal(answer.status, status, `${method} ${path}: ${answer.text}`)
    const { error, request_id, type: kind } = answer.json()
    assert.deepEqual([kind, error.type, error.details.error_code], ['error', type, code])
    assert.equal(request_id, answer.headers.get('request-id'))
    assert.ok(error.message.length > 0)
  }
  client.key = 'sk-ant-none'
  const anonymous = await client.call('GET', BATCHES)
  assert.deepEqual([anonymous.status, anonymous.json().error.type], [401, 'authentication_error'])
  const bearer = await client.call('GET', BATCHES, undefined, { authorization: `Bearer ${service.key}` })
  assert.equal(bearer.status, 200)
  client.key = await service.issueKey(['batches:read'])
  const forbidden = await client.call('POST', BATCHES, '{"requests":[{"custom_id":"a","params":{}}]}')
  assert.deepEqual([forbidden.status, forbidden.json().error.type], [403, 'permission_error'])
  assert.deepEqual((await service.json<{ data: object[] }>('GET', '/v1/files')).data, [])
})

test('two requests with one custom_id are an error of the call, which leaves no file', async (t) => {
  const { service, client } = await start(t)
  const request = JSON.stringify({ custom_id: 'a', params })
  const answer = await client.call('POST', BATCHES, `{"requests":[${request},${request}]}`)
  assert.equal(answer.status, 422)
  assert.match(answer.json().error.message, /custom_id/)
  assert.deepEqual((await service.json<{ data: object[] }>('GET', '/v1/files')).data, [])
  assert.deepEqual((await client.list('')).data, [])
})

test('a call that is sent again creates no second batch, by its key or as the retry of an SDK', async (t) => {
  const { service, client } = await start(t)
  const body = JSON.stringify({ requests: [{ custom_id: 'a', params }] })
  const create = async (headers: Record<string, string>, text = body) => {
    const answer = await client.call('POST', BATCHES, text, headers)
    return [answer.status, answer.json().id ?? answer.json().error.details.error_code]
  }
  const first = await create({})
  assert.deepEqual(await create({ 'x-stainless-retry-count': '1' }), first)
  const keyed = await create({ 'idempotency-key': 'k' })
  assert.notDeepEqual(keyed, first)
  assert.deepEqual(await create({ 'idempotency-key': 'k' }), keyed)
  assert.deepEqual(await create({ 'idempotency-key': 'k' }, body.replace('Hi', 'Ho')), [
    409,
    'idempotency_key_reused',
  ])
  assert.equal((await client.list('')).data.length, 2)
  const files = await service.json<{ data: object[] }>('GET', '/v1/files?purpose=batch')
  assert.equal(files.data.length, 2)
})

test('a proxy says at which address the results are', async (t) => {
  const { service, client, upstream } = await start(t)
  upstream.reply = (call) => send(call.response, 200, ANSWER)
  const { id } = await client.create({ a: params })
  await service.ended(id)
  const headers = { 'x-forwarded-proto': 'https', 'x-forwarded-host': 'batch.example, inner' }
  const { json } = await client.call('GET', `${BATCHES}/${id}`, undefined, headers)
  assert.equal(json().results_url, `https://batch.example${BATCHES}/${id}/results`)
})
