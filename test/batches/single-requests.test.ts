// Requests that come one at a time: each is a line of a batch that gathers them.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { inputOfChunk } from '../../src/results/finished-lines.ts'
import { readBlobRow } from '../../src/store/blobs.ts'
import { readChunkOfLine } from '../../src/store/chunks.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, TestService, type WireBatch, type WireFile } from '../service.ts'

const CHAT = '/v1/chat/completions'
const JSON_TYPE = { 'content-type': 'application/json' }

interface WireRequest {
  id: string
  batch_id: string
  custom_id: string
  line: number
  status: string
  entity: string | null
  conversation: string | null
  cost_usd: number
  error: { code: string } | null
  response: { status_code: number; body: { choices: { message: { content: string } }[] } } | null
}

function chat(text: string, more: object = {}) {
  const body = { model: 'm', messages: [{ role: 'user', content: text }], max_tokens: 5 }
  return { endpoint: CHAT, body, ...more }
}

async function post(service: TestService, order: object | string, headers = {}): Promise<WireRequest> {
  const text = typeof order === 'string' ? order : JSON.stringify(order)
  const answer = await service.request('POST', '/v1/requests', text, { ...JSON_TYPE, ...headers })
  const accepted = (await answer.json()) as WireRequest
  assert.equal(answer.status, 202, JSON.stringify(accepted))
  return accepted
}

function waited(service: TestService, id: string): Promise<WireRequest> {
  return service.json<WireRequest>('GET', `/v1/requests/${id}?wait=30s`)
}

test('a request is answered at once without a result, sent byte for byte, and read when it has ended', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const body = '{"max_tokens":5.0,"model":"m", "messages":[{"role":"user",\n"content":"\\u0061é"}]}'
  const accepted = await post(
    service,
    `{"endpoint":"${CHAT}","body":${body},"metadata":{"entity":"user:1","conversation":"c7"}}`,
  )
  const { id, status, entity, conversation, response } = accepted
  assert.deepEqual([status, entity, conversation, response], ['queued', 'user:1', 'c7', null])
  const ended = await waited(service, id)
  assert.deepEqual([ended.status, ended.entity, ended.error], ['completed', 'user:1', null])
  assert.equal(ended.response?.body.choices[0]?.message.content, 'aé')
  assert.deepEqual(
    upstream.calls.map(({ bytes }) => bytes.toString()),
    [body.replace('\n', ' ')],
  )
})

test('requests that come together are one chunk of one batch, which becomes a batch like others', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(
    configFor(upstream.base_url, 'requests: {gather: {lines: 20}}'),
  )
  const accepted = await Promise.all(Array.from({ length: 20 }, (_, i) => post(service, chat(`r${i}`))))
  const [batch_id = ''] = new Set(accepted.map((one) => one.batch_id))
  assert.deepEqual(
    accepted.map(({ line }) => line).sort((a, b) => a - b),
    Array.from({ length: 20 }, (_, i) => i + 1),
  )
  const answers = await Promise.all(accepted.map(({ id }) => waited(service, id)))
  assert.deepEqual(
    answers.map(({ response }) => response?.body.choices[0]?.message.content),
    accepted.map((_, i) => `r${i}`),
  )
  const batch = await service.ended(batch_id)
  assert.deepEqual([batch.status, batch.kind, batch.request_counts.completed], ['completed', 'requests', 20])
  assert.equal((await service.lines(batch.output_file_id)).length, 20)
  const listed = await service.json<{ data: WireBatch[] }>('GET', '/v1/batches')
  assert.deepEqual(listed.data, [])
  const gathered = await service.json<{ data: WireBatch[] }>('GET', '/v1/batches?kind=requests')
  assert.deepEqual(
    gathered.data.map(({ id }) => id),
    [batch_id],
  )
  // It is validated as a file that is uploaded, which may end after its lines.
  const file = await service.eventually(async () => {
    const one = await service.json<WireFile>('GET', `/v1/files/${batch.input_file_id}`)
    return one.status === 'processed' ? one : undefined
  })
  assert.equal(file.line_count, 20)
  const lines = (await service.content(batch.input_file_id)).trim().split('\n')
  assert.deepEqual(
    lines.map((line) => JSON.parse(line).custom_id),
    [...accepted].sort((a, b) => a.line - b.line).map(({ custom_id }) => custom_id),
  )
})

test('null stands for a field that is left out, as SDKs send it', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const left_out = { custom_id: null, completion_window: null, metadata: null, webhook: null }
  const { id, custom_id } = await post(service, chat('a', left_out))
  assert.match(custom_id, /^req_/)
  assert.equal((await waited(service, id)).status, 'completed')
})

test('what would fail a line is an error of the call, with the parameter', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  for (const [order, status, code, param] of [
    [chat('a', { body: { model: 'gone', messages: [] } }), 404, 'model_not_found', 'body.model'],
    [chat('a', { body: { model: 'm' } }), 400, 'invalid_request', 'body.messages'],
    [chat('a', { body: 'text' }), 400, 'invalid_request', 'body'],
    [chat('a', { endpoint: '/v1/nothing' }), 400, 'invalid_url', 'endpoint'],
    [chat('a', { completion_window: '3s' }), 403, 'plan_lacks_feature', 'completion_window'],
    [
      chat('a', { body: { model: 'm', messages: [{ role: 'user', content: 'a' }], stream: true } }),
      400,
      'streaming_not_supported',
      'body.stream',
    ],
  ] as const) {
    const answer = await service.request('POST', '/v1/requests', order)
    const { error } = (await answer.json()) as {
      error: { code: string; param: string; message: string }
    }
    assert.deepEqual([answer.status, error.code, error.param], [status, code, param], JSON.stringify(order))
    if (param === 'endpoint') assert.match(error.message, /^`endpoint` must be/)
  }
  assert.deepEqual((await service.json<{ data: WireBatch[] }>('GET', '/v1/batches?kind=all')).data, [])
})

test('a repeated call with its key gets the first answer, and is sent once', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const key = { 'idempotency-key': 'one' }
  const [first, other] = await Promise.all([post(service, chat('a'), key), post(service, chat('b'))])
  assert.notEqual(first.id, other.id)
  assert.deepEqual(await post(service, chat('a'), key), first)
  const answer = await service.request('POST', '/v1/requests', chat('c'), key)
  assert.equal(answer.status, 409)
  await waited(service, first.id)
  await waited(service, other.id)
  assert.equal(upstream.calls.length, 2)
})

test('many calls that wait for one request are answered, those that may not wait at once', async () => {
  // More than may wait, and more than the large reads that may be queued.
  const CALLS = 200
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url), { worker: false })
  const { id } = await post(service, chat('a'))
  const found: string[] = []
  const enough = Promise.withResolvers<void>()
  const calls = Array.from({ length: CALLS }, async () => {
    const { status } = await waited(service, id)
    if (found.push(status) === CALLS - 64) enough.resolve()
  })
  await Promise.race([enough.promise, Promise.all(calls)])
  assert.deepEqual([found.length, new Set(found)], [CALLS - 64, new Set(['queued'])])
  await service.worker.start()
  await Promise.all(calls)
  assert.deepEqual(new Set(found.slice(CALLS - 64)), new Set(['completed']))
  // None of them waits for the others.
  const ended = await Promise.all(Array.from({ length: CALLS }, () => waited(service, id)))
  assert.deepEqual(new Set(ended.map(({ status }) => status)), new Set(['completed']))
})

test('a request is cancelled alone, before it is sent', async () => {
  await using upstream = await testUpstream()
  const held: (() => void)[] = []
  upstream.reply = (call) => void held.push(() => echo(call))
  await using service = await TestService.start(
    // The first one is held until the second has ended, however long that takes.
    configFor(upstream.base_url).replace('timeout: 5s', 'timeout: 10m, concurrency_max: 1'),
  )
  const first = await post(service, chat('a'))
  await upstream.arrived(1)
  const second = await post(service, chat('b'))
  const cancelled = await service.json<WireRequest>('POST', `/v1/requests/${second.id}/cancel`)
  assert.equal(cancelled.id, second.id)
  const ended = await waited(service, second.id)
  assert.deepEqual([ended.status, ended.error?.code, ended.cost_usd], ['cancelled', 'request_cancelled', 0])
  held.shift()?.()
  assert.equal((await waited(service, first.id)).status, 'completed')
  assert.equal(upstream.calls.length, 1)
})

test('a cap lets in as many requests that come together as it has room for', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const cap = { scope: 'project', metric: 'requests', amount: 3, window: 'day', action: 'block' }
  await service.json('POST', '/v1/limits', cap)
  const answers = await Promise.all(
    Array.from({ length: 8 }, (_, i) => service.request('POST', '/v1/requests', chat(`${i}`))),
  )
  const statuses = answers.map(({ status }) => status).sort()
  assert.deepEqual(statuses, [202, 202, 202, 429, 429, 429, 429, 429])
})

test('quotas let in as many requests that come together as they have room for', async () => {
  await using upstream = await testUpstream(echo)
  const yaml = `${configFor(upstream.base_url)}\nplans: {payg: {quotas: {queued_lines: 3}}}`
  await using service = await TestService.start(yaml, { worker: false })
  const answers = await Promise.all(
    Array.from({ length: 5 }, (_, i) => service.request('POST', '/v1/requests', chat(`${i}`))),
  )
  assert.deepEqual(answers.map(({ status }) => status).sort(), [202, 202, 202, 429, 429])
  const bodies = (await Promise.all(answers.map((answer) => answer.json()))) as WireRequest[]
  assert.deepEqual(
    bodies.flatMap(({ error }) => error?.code ?? []),
    ['quota_exceeded', 'quota_exceeded'],
  )
})

test('each API process gathers into a batch of its own, and tells of the requests of all', async () => {
  await using upstream = await testUpstream(echo)
  const yaml = configFor(upstream.base_url)
  await using service = await TestService.start(yaml, { worker: false })
  await using other = await TestService.start(yaml, { folder: service.folder, worker: false })
  other.key = service.key
  const key = { 'idempotency-key': 'one' }
  const [first, second] = [await post(service, chat('a'), key), await post(other, chat('b'))]
  assert.notEqual(first.batch_id, second.batch_id)
  assert.deepEqual(await post(other, chat('a'), key), first)
  const ends = [waited(other, first.id), waited(service, second.id)]
  const more = await service.addWorker()
  await service.worker.start()
  assert.deepEqual(
    (await Promise.all(ends)).map(({ status }) => status),
    ['completed', 'completed'],
  )
  assert.equal(upstream.calls.length, 2)
  await more.stop()
})

test('a batch that was paused, cancelled or has lost its input gets no more requests', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url), { worker: false })
  const ends = [
    (batch: WireBatch) => service.json('POST', `/v1/batches/${batch.id}/pause`),
    (batch: WireBatch) => service.json('POST', `/v1/batches/${batch.id}/cancel`),
    (batch: WireBatch) => service.json('DELETE', `/v1/files/${batch.input_file_id}`),
  ]
  const sent: WireRequest[] = []
  for (const end of ends) {
    const request = await post(service, chat('a'))
    await end(await service.get(request.batch_id))
    sent.push(request)
  }
  sent.push(await post(service, chat('b')))
  assert.equal(new Set(sent.map(({ batch_id }) => batch_id)).size, 4)
  await service.worker.start()
  await service.json('POST', `/v1/batches/${sent[0]?.batch_id}/resume`)
  const found = await Promise.all(sent.map(({ id }) => waited(service, id)))
  assert.deepEqual(
    found.map(({ error }) => error?.code),
    [undefined, 'batch_cancelled', 'input_file_deleted', undefined],
  )
  assert.equal(upstream.calls.length, 2)
})

test('requests wait for a worker, and their batches end when it has come', async () => {
  await using upstream = await testUpstream(echo)
  const yaml = configFor(upstream.base_url, 'requests: {gather: {lines: 1}}')
  await using service = await TestService.start(yaml, { worker: false })
  const accepted = [await post(service, chat('a')), await post(service, chat('b'))]
  assert.notEqual(accepted[0]?.batch_id, accepted[1]?.batch_id)
  const waiting = await service.json<WireRequest>('GET', `/v1/requests/${accepted[0]?.id}`)
  assert.deepEqual([waiting.status, waiting.custom_id], ['queued', accepted[0]?.custom_id])
  await service.worker.start()
  for (const { id, batch_id } of accepted) {
    assert.equal((await waited(service, id)).status, 'completed')
    assert.equal((await service.ended(batch_id)).status, 'completed')
  }
})

test('a chunk whose row was read before its batch was closed has its lines in the input of the batch', async () => {
  await using upstream = await testUpstream(echo)
  const yaml = configFor(upstream.base_url, 'requests: {gather: {lines: 1}}')
  await using service = await TestService.start(yaml, { worker: false })
  const { batch_id } = await post(service, chat('a'))
  const { store, sealed } = service.stores
  const chunk = await readChunkOfLine(store.read, batch_id, 1)
  assert.ok(chunk?.input_blob)
  await service.worker.start()
  await service.ended(batch_id)
  assert.equal(await readBlobRow(store.read, chunk.input_blob), undefined)
  const bytes = await inputOfChunk({ db: store.read, sealed }, undefined, chunk)
  assert.match(String(bytes), /"content":"a"/)
})

test('a request waits for its own reason while others of its batch go on', async () => {
  await using upstream = await testUpstream(echo)
  const other = `models:\n  - id: other\n    upstreams: [{type: openai, base_url: "${upstream.base_url}"}]`
  await using service = await TestService.start(configFor(upstream.base_url).replace('models:', other))
  const first = await post(service, chat('a'))
  await waited(service, first.id)
  await service.json('POST', '/v1/models/other/pause')
  const body = { model: 'other', messages: [{ role: 'user', content: 'b' }] }
  const { id, batch_id } = await post(service, { endpoint: CHAT, body })
  assert.equal(batch_id, first.batch_id)
  type Waiting = { waiting_reason: { code: string; model: string } | null }
  let reason: Waiting['waiting_reason'] = null
  while (!reason) ({ waiting_reason: reason } = await service.json<Waiting>('GET', `/v1/requests/${id}`))
  assert.partialDeepStrictEqual(reason, { code: 'paused', model: 'other' })
  assert.equal((await service.get(batch_id)).waiting_reason, null)
})

test('a request of a conversation that has begun goes ahead of new ones', async () => {
  await using upstream = await testUpstream(echo)
  const yaml = configFor(upstream.base_url, 'requests: {gather: {lines: 1}}').replace(
    '5s}',
    '5s, concurrency_max: 1}',
  )
  await using service = await TestService.start(yaml, { worker: false })
  const conversation = { metadata: { conversation: 'c' } }
  const sent: { id: string; expires_at?: number }[] = []
  for (const order of [chat('first', conversation), chat('a'), chat('b'), chat('next', conversation)])
    sent.push(await post(service, order))
  assert.ok(sent[3]!.expires_at! >= sent[0]!.expires_at!)
  await service.worker.start()
  for (const { id } of sent) await waited(service, id)
  assert.match(upstream.calls[0]!.bytes.toString(), /next/)
})

test('a background response is a single request to its endpoint, in the form of the Responses API', async () => {
  const answer = {
    id: 'resp_server',
    object: 'response',
    status: 'completed',
    created_at: 1,
    metadata: {},
    model: 'm',
    output: [{ type: 'message' }],
  }
  const usage = { input_tokens: 3, output_tokens: 2, total_tokens: 5 }
  await using upstream = await testUpstream(({ response }) =>
    send(response, 200, JSON.stringify({ ...answer, usage })),
  )
  const yaml = configFor(upstream.base_url).replace('- id: m', '- id: m\n    endpoints: [/v1/responses]')
  await using service = await TestService.start(yaml)
  const order =
    '{"model":"m", "background":true,"input":"a","temperature":1.0,"metadata":{"user":"u1","conversation":"c0"},"background_options":{"completion_window":"2h","continuation_id":"c1"}}'
  const created = await service.request('POST', '/v1/responses', order, JSON_TYPE)
  const queued = (await created.json()) as {
    id: string
    status: string
    output: object[]
    metadata: object
    created_at: number
  }
  assert.equal(created.status, 200, JSON.stringify(queued))
  assert.deepEqual([created.status, queued.status, queued.output], [200, 'queued', []])
  const metadata = { user: 'u1', conversation: 'c1' }
  assert.deepEqual(queued.metadata, metadata)
  await waited(service, queued.id.replace('resp_', 'req_'))
  const ended = await service.json<object>('GET', `/v1/responses/${queued.id}`)
  assert.partialDeepStrictEqual(ended, {
    ...answer,
    id: queued.id,
    usage,
    status: 'completed',
    background: true,
    error: null,
    created_at: queued.created_at,
    metadata,
  })
  assert.deepEqual(
    upstream.calls.map(({ path, bytes }) => [path, bytes.toString()]),
    [
      [
        '/v1/responses',
        '{"model":"m","input":"a","temperature":1.0,"metadata":{"user":"u1","conversation":"c0"}}',
      ],
    ],
  )
  const image = `data:image/png;base64,${'A'.repeat(3 * 1024 * 1024)}`
  const large = { model: 'm', background: true, input: [{ type: 'input_image', image_url: image }] }
  assert.equal((await service.request('POST', '/v1/responses', large)).status, 200)
  const { responses } = new OpenAI({ apiKey: service.key, baseURL: `${service.url}/v1` })
  const { data: items } = await responses.inputItems.list(queued.id)
  assert.partialDeepStrictEqual(items, [{ role: 'user', content: [{ type: 'input_text', text: 'a' }] }])
  const { id } = await responses.create({ model: 'm', background: true, prompt: { id: 'pmpt_1' } })
  assert.deepEqual((await responses.inputItems.list(id)).data, [], 'a request needs no input of its own')
  await responses.delete(queued.id)
  for (const gone of [
    responses.retrieve(queued.id),
    responses.delete(queued.id),
    responses.cancel(queued.id),
  ])
    await assert.rejects(gone, { status: 404 })
  for (const [more, param] of [
    [{ background: false }, 'background'],
    [{ stream: true }, 'stream'],
    [{ input: 3 }, 'input'],
    [{ background_options: { completion_window: 'soon' } }, 'background_options.completion_window'],
    [{ background_options: { window: '2h' } }, 'background_options.window'],
  ] as const) {
    const order = { model: 'm', input: 'a', background: true, ...more }
    const wrong = await service.request('POST', '/v1/responses', order)
    const { error } = (await wrong.json()) as { error: { param: string } }
    assert.deepEqual([wrong.status, error.param], [400, param])
  }
})

test('the record of a response that was cut off says so, also when its result is gone', async () => {
  const answer = { object: 'response', status: 'incomplete', output: [{ type: 'message' }] }
  await using upstream = await testUpstream(({ response }) => send(response, 200, JSON.stringify(answer)))
  const yaml = configFor(upstream.base_url, 'requests: {gather: {lines: 1}}')
  await using service = await TestService.start(
    yaml.replace('- id: m', '- id: m\n    endpoints: [/v1/responses]'),
  )
  const order = { model: 'm', input: 'a', background: true }
  const { id } = await service.json<{ id: string }>('POST', '/v1/responses', order)
  const { batch_id } = await waited(service, id.replace('resp_', 'req_'))
  assert.partialDeepStrictEqual(await service.json<object>('GET', `/v1/responses/${id}`), answer)
  const { output_file_id } = await service.ended(batch_id)
  await service.json('DELETE', `/v1/files/${output_file_id}`)
  const record = await service.json<object>('GET', `/v1/requests/${id.replace('resp_', 'req_')}`)
  assert.partialDeepStrictEqual(record, { status: 'completed', incomplete: true, response: null })
})

test('a byte order mark before the body of a call is no part of it', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 400, '{}'))
  const yaml = configFor(upstream.base_url).replace(
    '- id: m',
    '- id: m\n    endpoints: [/v1/chat/completions, /v1/responses, /v1/messages]',
  )
  await using service = await TestService.start(yaml)
  const messages = [{ role: 'user', content: 'a' }]
  const params = { model: 'm', max_tokens: 5, messages }
  for (const [path, order] of [
    ['/v1/responses', { model: 'm', input: 'a', background: true }],
    ['/v1/requests', chat('a')],
    [
      '/v1/batches',
      { endpoint: CHAT, completion_window: '24h', requests: [{ custom_id: 'a', body: chat('a').body }] },
    ],
    ['/v1/messages/batches', { requests: [{ custom_id: 'a', params }] }],
    ['/v1/limits', { scope: 'project', metric: 'requests', amount: 3, window: 'day', action: 'notify' }],
  ] as const) {
    const answer = await service.request('POST', path, `\ufeff${JSON.stringify(order)}`, JSON_TYPE)
    assert.ok(answer.ok, `${path}: ${await answer.text()}`)
  }
})

test('a response was created when it was asked for, not when its batch began to gather', async () => {
  await using upstream = await testUpstream()
  const yaml = configFor(upstream.base_url).replace('- id: m', '- id: m\n    endpoints: [/v1/responses]')
  await using service = await TestService.start(yaml, { worker: false })
  const order = { model: 'm', input: 'a', background: true }
  type Shown = { id: string; created_at: number }
  const first = await service.json<Shown>('POST', '/v1/responses', order)
  // As if the batch gathered for half a minute by now.
  await service.stores.store.write((tx) =>
    tx
      .updateTable('batches')
      .set(({ eb }) => ({ created: eb('created', '-', 30_000) }))
      .execute(),
  )
  const called = Math.floor(Date.now() / 1000)
  const second = await service.json<Shown>('POST', '/v1/responses', order)
  const read = await service.json<Shown>('GET', `/v1/responses/${second.id}`)
  assert.ok(read.created_at >= called, `${read.created_at} is before ${called}`)
  const { batch_id, created } = await service.json<{ batch_id: string; created: number }>(
    'GET',
    `/v1/requests/${second.id.replace('resp_', 'req_')}`,
  )
  assert.deepEqual([second.created_at, created], [read.created_at, read.created_at])
  assert.equal(
    batch_id,
    (await service.json<WireRequest>('GET', `/v1/requests/${first.id.replace('resp_', 'req_')}`)).batch_id,
  )
})
