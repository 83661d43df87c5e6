// Strict clients of OpenAI's Batch API: what they may assume of an object holds, by key or by call, and the SDK reads
// it without a change.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI, { AzureOpenAI, toFile } from 'openai'
import { createKey } from '../../src/admin/create-key.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { ERRORS, type ErrorRow, isErrorCode, openaiError } from '../../src/domain/errors.ts'
import { showBatch } from '../../src/http/routes/batches.ts'
import { readRow } from '../../src/store/rows.ts'
import { testReceiver } from '../fakes/receiver.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch, type WireLine } from '../service.ts'
import { parsedLines } from '../support/api.ts'

const STRICT = { 'X-Offpeak-Compat': 'openai' }

function jsonl(lines: readonly object[]): Promise<File> {
  return toFile(Buffer.from(lines.map((one) => JSON.stringify(one)).join('\n')), 'in.jsonl')
}

function strictClient(service: TestService, apiKey = service.key): OpenAI {
  return new OpenAI({ apiKey, baseURL: `${service.url}/v1`, defaultHeaders: STRICT })
}

const ORDER = { endpoint: '/v1/chat/completions', completion_window: '24h' } as const

test('a strict client sees IDs, nulls, times and usage as OpenAI has them', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const client = strictClient(service)
  const file = await client.files.create({ file: await jsonl([line('a'), line('b')]), purpose: 'batch' })
  assert.match(file.id, /^file-[0-9a-z]{26}$/)
  assert.ok(['uploaded', 'processed'].includes(file.status))
  const made = await client.batches.create({ ...ORDER, input_file_id: file.id })
  const own = made.id
  assert.deepEqual(
    [made.status, made.in_progress_at, made.errors, made.metadata, made.output_file_id, made.input_file_id],
    ['validating', null, null, {}, null, file.id],
  )
  await service.ended(own)
  const done = await client.batches.retrieve(own)
  assert.equal(done.status, 'completed')
  assert.deepEqual(done.usage, {
    input_tokens: 20,
    input_tokens_details: { cached_tokens: 0, cache_write_tokens: 0, cache_write_1h_tokens: 0 },
    output_tokens: 10,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: 30,
  })
  for (const at of [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at])
    assert.ok(Number.isInteger(at))
  for (const at of [done.failed_at, done.expired_at, done.cancelling_at, done.cancelled_at])
    assert.equal(at, null)
  assert.match(String(done.output_file_id), /^file-/)
  const content = await (await client.files.content(String(done.output_file_id))).text()
  assert.equal(content.trimEnd().split('\n').length, 2)

  const listed = await client.files.list({ order: 'asc', limit: 1 })
  assert.equal(listed.data[0]?.id, file.id)
  assert.equal((await listed.getNextPage()).data[0]?.id, done.output_file_id)
  const { id, deleted } = await client.files.delete(file.id)
  assert.deepEqual([id, deleted], [file.id, true])
  await assert.rejects(client.files.retrieve(file.id), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError)
    assert.equal(error.param, null)
    return true
  })
})

test("the SDK's client for Azure runs a batch, with any key", async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const client = new AzureOpenAI({ endpoint: service.url, apiKey: service.key, apiVersion: '2024-10-21' })
  const file = await client.files.create({ file: await jsonl([line('a'), line('b')]), purpose: 'batch' })
  assert.match(file.id, /^file-/)
  const made = await client.batches.create({ ...ORDER, input_file_id: file.id })
  await service.ended(made.id)
  const done = await client.batches.retrieve(made.id)
  assert.deepEqual([done.status, done.request_counts?.completed, done.failed_at], ['completed', 2, null])
  const content = await (await client.files.content(String(done.output_file_id))).text()
  assert.equal(content.trimEnd().split('\n').length, 2)
  const listed = await client.batches.list({ limit: 1 })
  assert.equal(listed.data[0]?.id, made.id)
  assert.equal((await client.files.delete(file.id)).deleted, true)
})

test('a batch that waits is in progress once it is validated, and validating before', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a')])
  const row = await readRow(service.stores.store.read, 'batches', { id: batch.id })
  assert.ok(row?.queued_at)
  const view = { region: 'local', compat: 'openai' as const }
  const waiting = { ...row, status: 'queued' as const, in_progress_at: null, completed_at: null }
  const shown = showBatch(waiting, view)
  assert.deepEqual(
    [shown.status, shown.in_progress_at],
    ['in_progress', Math.floor(row.queued_at / 1000)],
    'and it stays so when its first line is sent',
  )
  assert.equal(showBatch({ ...row, queued_at: row.queued_at }, view).in_progress_at, shown.in_progress_at)
  assert.equal(showBatch({ ...waiting, queued_at: null }, view).status, 'validating')
  assert.equal(showBatch(waiting, { region: 'local', compat: null }).status, 'queued')
})

test('a failed batch says what is wrong with its lines', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const client = strictClient(service)
  const lines = Array.from({ length: 30 }, (_, i) => line(`l${i}`, 'x', { model: 'nope' }))
  const file = await client.files.create({ file: await jsonl(lines), purpose: 'batch' })
  const { id } = await client.batches.create({ ...ORDER, input_file_id: file.id })
  await service.ended(id)
  const failed = await client.batches.retrieve(id)
  assert.equal(failed.status, 'failed')
  assert.equal(failed.errors?.object, 'list')
  assert.equal(failed.errors?.data?.length, 20)
  const [first] = failed.errors?.data ?? []
  assert.deepEqual([first?.line, first?.code, first?.param], [1, 'model_not_found', 'body.model'])
  assert.match(String(first?.message), /nope/)
  // Also for those who did not ask for it.
  const own = await service.json<{ errors: unknown }>('GET', `/v1/batches/${id}`)
  assert.deepEqual(own.errors, failed.errors)
})

test('lines that a server rejected have a response in error files for strict clients, and nowhere else', async () => {
  await using upstream = await testUpstream((call) => {
    const text = call.body.messages[0]?.content
    if (text === 'rejected') return send(call.response, 400, '{"error":{"message":"No \\u2028 \\"é\\"."}}')
    if (text === 'failing') return send(call.response, 500, '{}')
    echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const names = ['rejected', 'fine', 'failing', 'rejected', 'unsent']
  const lines = names.map((text, i) =>
    line(`"${i}",response":null,"error":`, text, text === 'unsent' ? { model: 'none' } : {}),
  )
  const { id, error_file_id } = await service.run(lines, { metadata: { name: 'é' } })
  const path = `/v1/files/${error_file_id}/content`
  const own = await service.content(error_file_id)
  const read = async (headers: Record<string, string>, method = 'GET') => {
    const response = await service.request(method, path, undefined, { ...STRICT, ...headers })
    return { response, bytes: Buffer.from(await response.arrayBuffer()) }
  }
  const { response, bytes } = await read({})
  assert.equal(response.headers.get('content-length'), String(Buffer.byteLength(own)))
  assert.equal(bytes.length, Buffer.byteLength(own), 'both forms are as long')
  const [owned, strict] = [own, bytes.toString()].map((text) => parsedLines<WireLine>(text))
  assert.deepEqual(
    strict?.map(({ response }) => response?.status_code),
    [400, 503, 400, 404],
  )
  for (const [i, { id, custom_id, response, error }] of (strict ?? []).entries()) {
    assert.deepEqual([id, custom_id, error], [owned?.[i]?.id, owned?.[i]?.custom_id, null])
    assert.deepEqual([response?.request_id, owned?.[i]?.response], [id, null])
    assert.deepEqual(response?.body, { error: { param: null, ...owned?.[i]?.error } })
  }

  const tag = String(response.headers.get('etag'))
  assert.notEqual(tag, (await service.request('HEAD', path)).headers.get('etag'))
  assert.equal((await read({ 'if-none-match': tag })).response.status, 304)
  assert.equal((await read({}, 'HEAD')).response.headers.get('etag'), tag)
  for (let start = 0; start < bytes.length; start += 97) {
    const end = Math.min(bytes.length, start + 500)
    const part = await read({ range: `bytes=${start}-${end - 1}`, 'if-range': tag })
    assert.equal(part.response.status, 206)
    assert.deepEqual(part.bytes, bytes.subarray(start, end))
  }
  assert.equal((await read({ 'X-Offpeak-Compat': 'none' })).bytes.toString(), own)

  const results = await service.request('GET', `/v1/batches/${id}/results?part=error`, undefined, STRICT)
  assert.equal(await results.text(), bytes.toString())
  const order = {
    ...ORDER,
    requests: [{ body: { model: 'm', messages: [{ role: 'user', content: 'rejected' }] } }],
  }
  const waited = await service.request('POST', '/v1/batches', { ...order, wait: '30s' }, STRICT)
  const inCall = (await waited.json()) as { results: WireLine[] }
  assert.equal(inCall.results[0]?.response?.status_code, 400)
  const retried = await service.json<WireBatch>('POST', `/v1/batches/${id}/retry`)
  assert.equal((await service.ended(retried.id)).request_counts.failed, 4)
})

test('lines that were not run have an error for strict clients, as at OpenAI', async () => {
  await using upstream = await testUpstream(() => {})
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload([line('a')])
  const { id } = await service.create(file.id, { start_after: Math.floor(Date.now() / 1000) + 3600 })
  await service.json('POST', `/v1/batches/${id}/cancel`)
  const { error_file_id } = await service.ended(id)
  const content = await service.request('GET', `/v1/files/${error_file_id}/content`, undefined, STRICT)
  const [only] = parsedLines<WireLine>(await content.text())
  assert.deepEqual([only?.response, only?.error?.code], [null, 'batch_cancelled'])
})

test('a batch of a file that did not validate fails and says what is wrong with it', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const client = strictClient(service)
  const file = await client.files.create({ file: await jsonl([line('a'), line('a')]), purpose: 'batch' })
  const made = await client.batches.create({ ...ORDER, input_file_id: file.id })
  assert.equal(made.status, 'validating')
  await service.ended(made.id)
  const failed = await client.batches.retrieve(made.id)
  assert.equal(failed.status, 'failed')
  assert.deepEqual(
    failed.errors?.data?.map(({ line, code }) => [line, code]),
    [[2, 'duplicate_custom_id']],
  )
  assert.deepEqual(failed.request_counts, { total: 0, completed: 0, failed: 0 })
  assert.deepEqual([failed.output_file_id, failed.error_file_id], [null, null])
  const events = await service.json<{ data: { type: string }[] }>('GET', '/v1/events')
  assert.equal(events.data[0]?.type, 'batch.failed')
  // Others are told at once.
  const refused = await service.request('POST', '/v1/batches', { ...ORDER, input_file_id: file.id })
  assert.equal(refused.status, 422)
})

test('a key can be strict; a call that says otherwise wins; another mode is refused', async () => {
  await using service = await TestService.start('models: [{id: m, upstreams: [{type: sim}]}]')
  const { store } = service.stores
  const order = { project: 'strict', plan: 'payg', compat: 'openai' as const }
  const { key } = await createKey(store, systemClock, 'local', order)
  const call = async (path: string, headers: Record<string, string> = {}): Promise<Response> =>
    await fetch(`${service.url}${path}`, { headers: { authorization: `Bearer ${key}`, ...headers } })
  const client = new OpenAI({ apiKey: key, baseURL: `${service.url}/v1` })
  const { id } = await client.files.create({ file: await jsonl([line('a')]), purpose: 'batch' })
  assert.match(id, /^file-/)
  const own = await call(`/v1/files/${id}`, { 'X-Offpeak-Compat': 'none' })
  assert.equal(((await own.json()) as { id: string }).id, id.replace('-', '_'))
  const unknown = await call('/v1/files', { 'X-Offpeak-Compat': 'azure' })
  assert.equal(unknown.status, 400)
  const { error } = (await unknown.json()) as { error: { param: string; message: string } }
  assert.equal(error.param, 'X-Offpeak-Compat')
  assert.match(error.message, /"openai" or "none"/)
})

test('the SDK verifies and unwraps a webhook, and finds the batch in it', async () => {
  await using upstream = await testUpstream(echo)
  await using receiver = await testReceiver()
  const allowed = 'webhooks: {allow_private_networks: true}'
  await using service = await TestService.start(configFor(upstream.base_url, allowed))
  const { secret } = await service.json<{ secret: string }>('POST', '/v1/webhooks', { url: receiver.url })
  receiver.secret = secret
  const batch = await service.run([line('a')])
  await receiver.arrived(1)
  const { body, request } = receiver.received[0]!
  const headers = Object.fromEntries(Object.entries(request.headers).map(([k, v]) => [k, String(v)]))
  const event = await strictClient(service).webhooks.unwrap(body, headers, secret)
  assert.equal(event.type, 'batch.completed')
  assert.equal(event.object, 'event')
  assert.ok(Number.isInteger(event.created_at))
  assert.deepEqual([event.data.id, event.id], [batch.id, receiver.received[0]?.id])
})

test('what is not known is refused by name, also for strict clients', async () => {
  await using service = await TestService.start('models: [{id: m, upstreams: [{type: sim}]}]')
  const client = strictClient(service)
  const { id } = await client.files.create({
    file: await jsonl([line('a')]),
    purpose: 'batch',
    expires_after: { anchor: 'created_at', seconds: 3600 },
  })
  const { expires_at, created_at } = await client.files.retrieve(id)
  assert.equal(Number(expires_at) - created_at, 3600)
  const batch = await client.batches.create({
    ...ORDER,
    input_file_id: id,
    output_expires_after: { anchor: 'created_at', seconds: 7200 },
  })
  await service.ended(batch.id)
  const { output_file_id } = await client.batches.retrieve(batch.id)
  const output = await client.files.retrieve(String(output_file_id))
  assert.equal(Number(output.expires_at) - output.created_at, 7200)
  const extra = { ...ORDER, input_file_id: id, service_tier: 'flex' } as OpenAI.BatchCreateParams
  await assert.rejects(client.batches.create(extra), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError)
    assert.equal(error.param, 'service_tier')
    return true
  })
})

test('a batch of a file that is still being validated waits for it, then runs or says why it fails', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url, 'create: {wait_for_file: 0s}'))
  const client = strictClient(service)
  await service.worker.stop()
  const make = async (lines: readonly object[], metadata: Record<string, string> = {}) => {
    const file = await client.files.create({ file: await jsonl(lines), purpose: 'batch' })
    assert.equal(file.status, 'uploaded')
    return await client.batches.create({ ...ORDER, input_file_id: file.id, metadata })
  }
  const good = await make([line('a'), line('b')])
  assert.deepEqual([good.status, good.request_counts?.total, good.in_progress_at], ['validating', 0, null])
  const invalid = await make([line('a'), line('a')])
  const deleted = await make([line('a')])
  await client.files.delete(deleted.input_file_id)
  const cancelled = await make([line('a')])
  await client.batches.cancel(cancelled.id)
  const capped = await make([line('a'), line('b')], { entity: 'user:poor' })
  await service.json('POST', '/v1/limits', {
    ...{ scope: 'entity', entity: 'user:poor', metric: 'tokens', window: 'day', amount: 1, action: 'block' },
  })
  // The usual form tells the caller at once, and so does an estimate.
  const usual = { ...ORDER, input_file_id: good.input_file_id.replace('file-', 'file_') }
  assert.equal((await service.request('POST', '/v1/batches', usual)).status, 422)
  assert.equal((await service.request('POST', '/v1/batches?dry_run=true', usual)).status, 422)

  await service.restartWorker()
  const ends = new Map<string, [string, string | undefined]>()
  for (const { id } of [good, invalid, deleted, cancelled, capped]) {
    await service.ended(id)
    const { status, errors } = await client.batches.retrieve(id)
    ends.set(id, [status, errors?.data?.[0]?.code])
  }
  assert.deepEqual(
    [...ends.values()],
    [
      ['completed', undefined],
      ['failed', 'duplicate_custom_id'],
      ['failed', 'input_file_deleted'],
      ['cancelled', undefined],
      ['failed', 'usage_limit_exceeded'],
    ],
  )
  const done = await client.batches.retrieve(good.id)
  assert.deepEqual(done.request_counts, { total: 2, completed: 2, failed: 0 })
  assert.equal((await service.lines(done.output_file_id!.replace('file-', 'file_'))).length, 2)
  assert.equal(upstream.calls.length, 2)
})

// The class of the SDK for each status; other statuses are an APIError.
const CLASSES: Record<number, object> = {
  400: OpenAI.BadRequestError,
  401: OpenAI.AuthenticationError,
  403: OpenAI.PermissionDeniedError,
  404: OpenAI.NotFoundError,
  409: OpenAI.ConflictError,
  429: OpenAI.RateLimitError,
  500: OpenAI.InternalServerError,
  503: OpenAI.InternalServerError,
}

test('every error of a call has a status and a code that the SDK of a strict client knows', () => {
  for (const [name, row] of Object.entries<ErrorRow>(ERRORS)) {
    assert.ok(isErrorCode(name))
    if (!row.places.includes('http')) continue
    const { status, code } = openaiError(name)
    const error = OpenAI.APIError.generate(status, { error: { code } }, '', new Headers())
    const known = [405, 408, 413, 415, 416].includes(status) ? OpenAI.APIError : CLASSES[status]
    assert.equal(error.constructor, known, `${name}: ${status}`)
    assert.equal(error.code, code)
  }
})

test("errors for a strict client have OpenAI's statuses and codes, and others those of the table", async () => {
  await using service = await TestService.start('models: [{id: m, upstreams: [{type: sim}]}]')
  const client = strictClient(service)
  const { id } = await service.run([line('a')])
  await assert.rejects(client.batches.cancel(id), (error) => {
    assert.ok(error instanceof OpenAI.ConflictError)
    assert.equal(error.headers.get('x-should-retry'), 'false')
    assert.equal(error.code, 'batch_not_cancellable')
    return true
  })
  assert.equal((await service.request('POST', `/v1/batches/${id}/cancel`)).status, 422)
  await assert.rejects(client.get('/nothing'), { status: 404, code: 'unknown_url' })
  await assert.rejects(client.delete('/models'), { status: 405, code: 'method_not_supported' })
  await assert.rejects(client.post(`/batches/${id}/retry`), { status: 400, code: 'batch_not_retryable' })
  for (const purpose of ['assistants', 'fine-tune', 'vision', 'user_data', 'evals'])
    assert.deepEqual((await client.files.list({ purpose })).data, [], purpose)
  await assert.rejects(client.files.list({ purpose: 'other' }), OpenAI.BadRequestError)
})

test('what is wrong with a request of a call is named by its index, and refused texts are quoted', async () => {
  await using service = await TestService.start('models: [{id: m, upstreams: [{type: sim}]}]')
  const refused = async (
    path: string,
    body: object,
    headers = {},
  ): Promise<{ param: string; message: string }> => {
    const answer = await service.request('POST', path, body, headers)
    const { error } = (await answer.json()) as {
      error: { message: string; param?: string; details?: { param: string } }
    }
    return { message: error.message, param: String(error.param ?? error.details?.param) }
  }
  const params = { model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'x' }] }
  const requests = ['a', 'b', 'a'].map((custom_id) => ({ custom_id, params }))
  const twice = await refused('/v1/messages/batches', { requests })
  assert.equal(twice.param, 'requests[2].custom_id')
  assert.match(twice.message, /`requests\[2\]`.*`requests\[0\]`/)
  const streams = { requests: [requests[0], { custom_id: 's', params: { ...params, stream: true } }] }
  assert.equal((await refused('/v1/messages/batches', streams)).param, 'requests[1].params.stream')
  const file = await service.upload([
    { ...line('a'), method: 'GET' },
    { ...line('b'), url: '/v1/moderations' },
  ])
  assert.equal(file.status, 'error')
  const { errors } = await service.json<{ errors: { message: string }[] }>('GET', `/v1/files/${file.id}`)
  assert.match(errors.map(({ message }) => message).join(), /not "GET".*not "\/v1\/moderations"/)
})

test('a client of Azure names endpoints without a version, in lines and in a batch', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const azure = new AzureOpenAI({ endpoint: service.url, apiKey: service.key, apiVersion: '2024-10-21' })
  const lines = [{ ...line('a'), url: '/chat/completions' }, line('b')]
  const file = await azure.files.create({ file: await jsonl(lines), purpose: 'batch' })
  const order = { input_file_id: file.id, endpoint: '/chat/completions', completion_window: '24h' }
  const { id, endpoint } = await azure.batches.create(order as OpenAI.BatchCreateParams)
  assert.equal(endpoint, '/v1/chat/completions')
  assert.equal((await service.ended(id)).request_counts.completed, 2)
  assert.deepEqual(new Set(upstream.calls.map(({ path }) => path)), new Set(['/v1/chat/completions']))
  // Under /v1 the endpoint of a batch has its whole name.
  assert.equal(
    (await service.request('POST', '/v1/batches', { ...order, input_file_id: file.id })).status,
    400,
  )
})

// Each field of the SDK's types, by its compiler: a release with another one fails here.
const BATCH_FIELDS: Record<keyof OpenAI.Batch, true> = {
  ...{ id: true, object: true, endpoint: true, status: true, model: true, errors: true, usage: true },
  ...{
    input_file_id: true,
    output_file_id: true,
    error_file_id: true,
    completion_window: true,
    metadata: true,
  },
  ...{ created_at: true, in_progress_at: true, finalizing_at: true, completed_at: true, failed_at: true },
  ...{ expired_at: true, expires_at: true, cancelling_at: true, cancelled_at: true, request_counts: true },
}
const FILE_FIELDS: Record<keyof OpenAI.FileObject, true> = {
  ...{ id: true, object: true, bytes: true, created_at: true, expires_at: true, filename: true },
  ...{ purpose: true, status: true, status_details: true },
}
const UPLOAD_FIELDS: Record<keyof OpenAI.Upload, true> = {
  ...{ id: true, object: true, bytes: true, created_at: true, expires_at: true, filename: true },
  ...{ purpose: true, status: true, file: true },
}

test('every field of the SDK is in what a strict client gets, and is described', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const client = strictClient(service)
  const file = await client.files.create({ file: await jsonl([line('a')]), purpose: 'batch' })
  const { id } = await client.batches.create({ ...ORDER, input_file_id: file.id })
  await service.ended(id)
  const upload = await client.uploads.create({
    ...{ bytes: 3, filename: 'x.jsonl', mime_type: 'application/jsonl', purpose: 'batch' },
  })
  const document = await service.json<{ components: { schemas: Record<string, { properties: object }> } }>(
    'GET',
    '/openapi.json',
  )
  const described = document.components.schemas
  const found: [string, object, object][] = [
    ['Batch', await client.batches.retrieve(id), BATCH_FIELDS],
    ['File', await client.files.retrieve(file.id), FILE_FIELDS],
    ['Upload', upload, UPLOAD_FIELDS],
  ]
  for (const [name, shown, fields] of found) {
    assert.deepEqual(
      Object.keys(fields).filter((field) => !(field in shown)),
      [],
      name,
    )
    const known = described[name]?.properties ?? {}
    assert.deepEqual(
      Object.keys(shown).filter((field) => !(field in known)),
      [],
      name,
    )
  }
  assert.equal((await client.batches.retrieve(id)).model, 'm')
})
