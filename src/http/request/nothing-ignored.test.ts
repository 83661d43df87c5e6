// A parameter, a field, a header or an encoding that an endpoint does not support is rejected by name, never ignored.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { ONE_LINE, object, type TestServer, testServer } from '../../../test/support/test-server.ts'

const JSON_TYPE = { 'content-type': 'application/json' }

function form(
  fields: readonly (readonly [string, string])[],
  content: string | Uint8Array = ONE_LINE,
  purpose = 'batch',
): FormData {
  const form = new FormData()
  form.set('purpose', purpose)
  for (const [name, value] of fields) form.append(name, value)
  form.set('file', new Blob([Uint8Array.from(Buffer.from(content))]), 'in.jsonl')
  return form
}

async function filesOf(server: TestServer): Promise<number> {
  return (await server.call('GET', '/v1/files')).data.length
}

test('a query parameter that an endpoint does not take is a 400 with its name', async () => {
  await using server = await testServer()
  for (const [path, param] of [
    ['/v1/batches?offset=20', 'offset'],
    ['/v1/files?page=2', 'page'],
    ['/v1/models?before=x', 'before'],
    ['/v1/models/sim-1?verbose=1', 'verbose'],
    ['/v1/usage/entities?group_by[]=entity', 'group_by[]'],
    ['/v1/usage/entities?group_by%5B%5D=entity', 'group_by[]'],
    ['/v1/limits?status=open', 'status'],
    ['/v1/files/file_x?x', 'x'],
  ] as const) {
    const answer = await server.call('GET', path)
    assert.equal(answer.outcome, '400 invalid_request', path)
    assert.equal(answer.error.param, param)
    assert.ok(String(answer.error.message).includes(`\`${param}\``))
  }
  const offset = await server.call('GET', '/v1/batches?offset=20')
  assert.match(String(offset.error.message), /`starting_after`/)
  assert.equal((await server.call('GET', '/healthz?probe=1', { key: null })).status, 200)
})

test('lists have the order that OpenAI clients ask for; another one is refused', async () => {
  await using server = await testServer()
  const made: string[] = []
  for (let i = 0; i < 3; i++) made.push((await server.upload()).id)
  const newest = await server.call('GET', '/v1/files?limit=5&order=desc&purpose=batch')
  assert.deepEqual(newest.ids, made.toReversed())
  const first = await server.call('GET', '/v1/files?limit=2&order=asc')
  assert.deepEqual([first.ids, first.json.has_more], [made.slice(0, 2), true])
  const rest = await server.call('GET', `/v1/files?limit=2&order=asc&after=${first.json.next_cursor}`)
  assert.deepEqual([rest.ids, rest.json.has_more], [made.slice(2), false])
  for (const path of ['batches', 'events', 'limits', 'webhooks', 'models'])
    assert.equal((await server.call('GET', `/v1/${path}?order=asc`)).status, 200, path)
  const models = await server.call('GET', '/v1/models?order=asc')
  assert.deepEqual(models.ids, (await server.call('GET', '/v1/models')).ids.toReversed())
  const shuffled = await server.call('GET', '/v1/files?order=random')
  assert.deepEqual([shuffled.outcome, shuffled.error.param], ['400 invalid_request', 'order'])
})

test('a field that a request does not have is a 400 with its name', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const batch = { input_file_id: file, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const limit = { scope: 'project', metric: 'tokens', amount: 5, window: 'day' }
  const { id } = await server.call('POST', '/v1/limits', { body: limit })
  for (const [path, body, param] of [
    ['/v1/batches', { ...batch, priority: 'high' }, 'priority'],
    ['/v1/batches', { ...batch, __proto__x: 1 }, '__proto__x'],
    ['/v1/limits', { ...limit, currency: 'EUR' }, 'currency'],
    [`/v1/limits/${id}`, { amount: 7, window: 'month' }, 'window'],
    ['/v1/webhooks', { url: 'https://example.com', secret: 'x' }, 'secret'],
  ] as const) {
    const answer = await server.call('POST', path, { body })
    assert.equal(answer.outcome, '400 invalid_request', path)
    assert.equal(answer.error.param, param)
  }
  assert.deepEqual((await server.call('GET', '/v1/batches')).data, [])
})

test('a body that is compressed, or not UTF-8, is a 415 that says so', async () => {
  await using server = await testServer()
  const body = JSON.stringify({ scope: 'project', metric: 'tokens', amount: 5, window: 'day' })
  const gzip = Uint8Array.from(gzipSync(body))
  for (const [headers, raw, words] of [
    [{ ...JSON_TYPE, 'content-encoding': 'gzip' }, gzip, /gzip/],
    [{ ...JSON_TYPE, 'content-encoding': 'br' }, body, /`Content-Encoding: br`/],
    [JSON_TYPE, gzip, /compressed \(gzip\)/],
    [{ 'content-type': 'application/json; charset=iso-8859-1' }, body, /"iso-8859-1"/],
    [{ 'content-type': 'application/json;charset="utf-16"' }, body, /UTF-8/],
  ] as const) {
    const answer = await server.call('POST', '/v1/limits', { headers, raw })
    assert.equal(answer.outcome, '415 unsupported_media_type')
    assert.match(String(answer.error.message), words)
  }
  const bytes = Uint8Array.from([0x7b, 0x22, 0xff, 0x22, 0x7d])
  const broken = await server.call('POST', '/v1/limits', { headers: JSON_TYPE, raw: bytes })
  assert.equal(broken.outcome, '400 invalid_json')
  assert.match(String(broken.error.message), /not valid UTF-8/)
  for (const type of ['application/json; charset=utf-8', 'application/json; charset="UTF-8"'])
    assert.equal(
      (await server.call('POST', '/v1/limits', { headers: { 'content-type': type }, raw: body })).status,
      200,
    )
})

test('a form that is sent where JSON is expected is a 415 that says so', async () => {
  await using server = await testServer()
  for (const [method, path] of [
    ['POST', '/v1/limits'],
    ['POST', '/v1/batches'],
    ['POST', '/v1/messages/batches'],
    ['POST', '/v1/batches/batch_x/retry'],
  ] as const) {
    const answer = await server.call(method, path, { raw: form([['metric', 'tokens']]) })
    assert.match(answer.text, /This body is `multipart\/form-data`\. Send it as JSON/, path)
    assert.equal(answer.status, 415)
  }
})

test('a compressed upload is rejected with the name of its format, and leaves nothing', async () => {
  await using server = await testServer()
  for (const [name, bytes] of [
    ['gzip', gzipSync(ONE_LINE)],
    ['zip', Buffer.from('PK\x03\x04....')],
    ['zstd', Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0])],
  ] as const) {
    const answer = await server.call('POST', '/v1/files', { raw: form([], bytes) })
    assert.equal(answer.outcome, '400 invalid_request')
    assert.match(String(answer.error.message), new RegExp(`compressed \\(${name}\\)`))
    assert.equal(answer.error.param, 'file')
  }
  assert.equal(await filesOf(server), 0)
  assert.equal((await server.call('POST', '/v1/files', { raw: form([], 'x') })).status, 200)
})

test('JSONL without a form is rejected with the way to send it', async () => {
  await using server = await testServer()
  for (const type of [
    'application/x-ndjson',
    'application/json',
    'application/x-www-form-urlencoded',
    'text/plain',
  ]) {
    const answer = await server.call('POST', '/v1/files', {
      raw: ONE_LINE,
      headers: { 'content-type': type },
    })
    assert.equal(answer.outcome, '415 unsupported_media_type', type)
    assert.match(String(answer.error.message), /curl -F purpose=batch -F file=@/)
    assert.ok(String(answer.error.message).includes(`\`${type}\``))
  }
})

test('an unknown form field is rejected; expires_after is applied', async () => {
  await using server = await testServer()
  const unknown = await server.call('POST', '/v1/files', { raw: form([['priority', 'high']]) })
  assert.deepEqual([unknown.outcome, unknown.error.param], ['400 invalid_request', 'priority'])
  const expiring = form([
    ['expires_after[anchor]', 'created_at'],
    ['expires_after[seconds]', '3600'],
  ])
  const { json } = await server.call('POST', '/v1/files', { raw: expiring })
  assert.equal(Number(json.expires_at) - Number(json.created), 3600)
  const later = form([['expires_after[seconds]', '999999999']])
  const kept = (await server.call('POST', '/v1/files', { raw: later })).json
  assert.equal(Number(kept.expires_at) - Number(kept.created), 90 * 86_400)
  const nonsense = await server.call('POST', '/v1/files', { raw: form([['expires_after[seconds]', 'soon']]) })
  assert.equal(nonsense.error.param, 'expires_after[seconds]')
})

test('an upload with an Idempotency-Key is stored once', async () => {
  await using server = await testServer()
  const headers = { 'idempotency-key': 'upload-1' }
  const first = await server.call('POST', '/v1/files', { raw: form([]), headers })
  const again = await server.call('POST', '/v1/files', { raw: form([]), headers })
  assert.equal(again.text, first.text)
  assert.equal(again.headers.get('idempotency-replayed'), 'true')
  assert.equal(await filesOf(server), 1)
  const others = [
    form([], `${ONE_LINE}\n`),
    form([['expires_after[seconds]', '60']]),
    form([], ONE_LINE, 'table'),
  ]
  for (const raw of others)
    assert.equal(
      (await server.call('POST', '/v1/files', { raw, headers })).outcome,
      '409 idempotency_key_reused',
    )
  const implicit = { ...headers, 'idempotency-mode': 'implicit' }
  const told = await server.call('POST', '/v1/files', { raw: form([]), headers: implicit })
  assert.equal(told.outcome, '409 idempotency_cache_not_requested')
  assert.equal(told.error.original_request_id, first.request_id)
  const blobs: string[] = []
  for await (const { key } of server.blobs.list('')) blobs.push(key)
  assert.deepEqual(blobs, [`files/${first.id}/upload`])
  const webhook = await server.call('POST', '/v1/webhooks', {
    body: { url: 'https://example.com/' },
    headers,
  })
  assert.deepEqual([webhook.outcome, webhook.error.param], ['400 invalid_request', 'Idempotency-Key'])
})

test('content that the caller already has is a 304', async () => {
  await using server = await testServer()
  const { id } = await server.upload()
  const path = `/v1/files/${id}/content`
  const etag = String((await server.call('GET', path)).headers.get('etag'))
  for (const tags of [etag, `W/${etag}`, `"x", ${etag}`, '*']) {
    const answer = await server.call('GET', path, { headers: { 'if-none-match': tags } })
    assert.deepEqual([answer.status, answer.text, answer.headers.get('etag')], [304, '', etag])
  }
  assert.equal((await server.call('GET', path, { headers: { 'if-none-match': '"x"' } })).text, ONE_LINE)
})

test('a limit below a nano-dollar is rejected; zero is allowed', async () => {
  await using server = await testServer()
  const limit = { scope: 'project', metric: 'cost_usd', window: 'day' }
  for (const amount of [1e-10, 9e-10, Number.MIN_VALUE]) {
    const answer = await server.call('POST', '/v1/limits', { body: { ...limit, amount } })
    assert.deepEqual([answer.outcome, answer.error.param], ['400 invalid_request', 'amount'])
  }
  for (const amount of [0, 1e-9])
    assert.equal(
      (await server.call('POST', '/v1/limits', { body: { ...limit, amount } })).json.amount,
      amount,
    )
})

test('an entity is trimmed, and a blank one rejected, in the header, the batch and a limit alike', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const batch = { input_file_id: file, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const limit = { scope: 'entity', metric: 'tokens', amount: 5, window: 'day' }
  const NBSP = Buffer.from('\u00a0').toString('latin1')
  const ask = {
    header: (entity: string) =>
      server.call('POST', '/v1/batches', { body: batch, headers: { 'x-service-entity': entity } }),
    batch: (entity: string) =>
      server.call('POST', '/v1/batches', { body: { ...batch, metadata: { entity } } }),
    limit: (entity: string) => server.call('POST', '/v1/limits', { body: { ...limit, entity } }),
  }
  for (const blank of ['', ' ']) {
    const refused = await Promise.all([ask.header(blank), ask.batch(blank), ask.limit(blank)])
    assert.deepEqual(
      refused.map(({ outcome, error }) => [outcome, error.param]),
      ['X-Service-Entity', 'metadata.entity', 'entity'].map((param) => ['400 invalid_request', param]),
    )
  }
  for (const answer of [await ask.header(` user:42${NBSP} `), await ask.batch(' user:42\u00a0')]) {
    const { entity } = object((await server.call('GET', `/v1/requests/${answer.request_id}`)).json)
    assert.equal(entity, 'user:42')
  }
  assert.equal((await ask.limit(' user:42\t')).json.entity, 'user:42')
  assert.equal((await server.call('GET', '/v1/limits?entity=%20user:42')).data.length, 1)
})

test('endpoints without a body reject one, unless it is empty', async () => {
  await using server = await testServer()
  for (const [method, path, missing] of [
    ['POST', '/v1/batches/batch_x/cancel', 'batch_not_found'],
    ['DELETE', '/v1/files/file_x', 'file_not_found'],
    ['POST', '/v1/webhooks/wh_x/rotate_secret', 'webhook_not_found'],
  ] as const) {
    const refused = await server.call(method, path, { body: { force: true } })
    assert.deepEqual([refused.outcome, refused.error.param], ['400 invalid_request', 'force'], path)
    for (const body of [{}, null]) {
      const { outcome } = await server.call(method, path, { raw: JSON.stringify(body), headers: JSON_TYPE })
      assert.equal(outcome, `404 ${missing}`)
    }
    const text = await server.call(method, path, { raw: '"now"', headers: JSON_TYPE })
    assert.equal(text.outcome, '400 invalid_request')
  }
})

test('a repeated form field and an obscured charset are rejected', async () => {
  await using server = await testServer()
  const twice = form([
    ['expires_after[anchor]', 'created_at'],
    ['expires_after[seconds]', '4000'],
    ['expires_after[seconds]', '90000'],
  ])
  const doubled = await server.call('POST', '/v1/files', { raw: twice })
  assert.deepEqual([doubled.outcome, doubled.error.param], ['400 invalid_request', 'expires_after[seconds]'])
  const purposes = await server.call('POST', '/v1/files', { raw: form([['purpose', 'table']]) })
  assert.deepEqual([purposes.outcome, purposes.error.param], ['400 invalid_request', 'purpose'])
  for (const type of ['charset = utf-16', 'charset=utf-8; charset=utf-16', "charset='utf-16'"]) {
    const headers = { 'content-type': `application/json; ${type}` }
    const answer = await server.call('POST', '/v1/limits', { raw: '{}', headers })
    assert.equal(answer.outcome, '415 unsupported_media_type', type)
  }
})

test('a slash at the end of a path changes nothing', async () => {
  await using server = await testServer()
  const { id } = await server.upload()
  for (const path of ['/v1/files/', `/v1/files/${id}/`, '/v1/models/', '/v1/models/sim-1/', '/healthz/'])
    assert.equal((await server.call('GET', path)).status, 200, path)
  assert.equal((await server.call('GET', '/v1/models/sim-1/')).id, 'sim-1')
  assert.equal((await server.call('PUT', '/v1/files/', { body: {} })).headers.get('allow'), 'GET, HEAD, POST')
})

test('a body with more fields and items than any shape takes is refused before they are compared', async () => {
  await using server = await testServer()
  const part_ids = Array.from({ length: 50_000 }, (_, i) => i)
  for (const body of [{ part_ids }, { metadata: { ...part_ids } }]) {
    const answer = await server.call('POST', '/v1/uploads/upload_1/complete', { body })
    assert.deepEqual(
      [answer.outcome, /2000 fields or 10000 items/.test(answer.text)],
      ['400 invalid_request', true],
    )
  }
})
