import assert from 'node:assert/strict'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import { text } from 'node:stream/consumers'
import { after, before, beforeEach, test } from 'node:test'
import { type Listening, listen } from '../../../test/support/listen.ts'
import { NO_CERTIFICATES } from '../../domain/credentials.ts'
import { lineRequestId, newId } from '../../domain/ids.ts'
import { UndecidedBatch, type WantedBatch } from '../batch-api/batch-api.ts'
import { idInBatch, readResultLine } from '../batch-api/result-line.ts'
import { AnthropicBatchApi } from './anthropic-batch-api.ts'

const NOW = Date.parse('2026-11-22T12:00:00Z')
const LINE = lineRequestId(newId('batch', NOW), 1)
const NAME = newId('remote', NOW)
const MESSAGE =
  '{ "type":"message","content":[ {"type":"text","text":"h\\u00e9"} ],"usage":{"input_tokens":1, "output_tokens":2}}'

interface Asked {
  method: string
  url: string
  headers: IncomingHttpHeaders
  body: string
}

let asked: Asked[] = []
let answers: Record<string, unknown> = {}
const server = createServer(async (request, response) => {
  const { method = '', url = '', headers } = request
  asked.push({ method, url, headers, body: await text(request) })
  const answer = answers[`${method} ${url.replace(/\?.*/, '')}`]
  response.statusCode = answer === undefined ? 404 : 200
  response.end(typeof answer === 'string' ? answer : JSON.stringify(answer ?? {}))
})
let at: Listening
let api: AnthropicBatchApi

before(async () => {
  at = await listen(server)
  api = new AnthropicBatchApi({
    base_url: `${at.url}/v1`,
    api_key: 'the-key',
    keyFile: null,
    certificates: () => NO_CERTIFICATES,
    proxy: null,
    headers: { 'Anthropic-Version': '2099-01-01' },
    timeout_ms: 10_000,
    keepFiles: false,
    resultsFrom: [],
    now: () => NOW,
  })
})

beforeEach(() => {
  asked = []
  answers = {}
})

after(async () => {
  await api.close()
  await at.close()
})

function batch(id: string, counts: Record<string, number>, more: object = {}): object {
  const request_counts = { processing: 0, succeeded: 0, errored: 0, canceled: 0, expired: 0, ...counts }
  const isEnded = request_counts.processing === 0
  return {
    id,
    type: 'message_batch',
    processing_status: isEnded ? 'ended' : 'in_progress',
    request_counts,
    created_at: new Date(NOW).toISOString(),
    results_url: isEnded ? `https://elsewhere.example/${id}` : null,
    ...more,
  }
}

const LIST = 'GET /v1/messages/batches'
const resultsOf = (id: string): string => `GET /v1/messages/batches/${id}/results`
const result = (name: string, json = `{"type":"succeeded","message":${MESSAGE}}`): string =>
  `{"custom_id":"${idInBatch(LINE, name)}","result":${json}}\n`
const wanted: WantedBatch = {
  name: NAME,
  file_id: null,
  line_count: 2,
  since: NOW,
  taken: async () => new Set(['of-another']),
}

test('a batch carries its requests as they are, each by an ID of 64 characters, and the key in its own header', async () => {
  answers['POST /v1/messages/batches'] = batch('b', { processing: 2 })
  const body = Buffer.from('{"model": "m",  "max_tokens":1}')
  const requests = [1, 2].map(() => ({
    custom_id: LINE,
    endpoint: '/v1/messages' as const,
    metadata: null,
    body,
  }))
  const order = { name: NAME, file_id: null, endpoint: '/v1/messages' as const, metadata: {} }
  const { id, ended } = await api.create({ ...order, requests: () => requests })
  assert.deepEqual([id, ended], ['b', null])
  const [call] = asked
  assert.equal(call?.headers['x-api-key'], 'the-key')
  assert.equal(call?.headers['anthropic-version'], '2099-01-01', 'a configured header wins')
  assert.equal(call?.headers.authorization, undefined)
  const one = `{"custom_id":"${idInBatch(LINE, NAME)}","params":${body}}`
  assert.equal(call?.body, `{"requests":[${one},${one}]}`)
  assert.match(idInBatch(LINE, NAME), /^[a-zA-Z0-9_-]{64}$/)
})

test('how a batch has ended is read from its counts, and its results are at its own address', async () => {
  const ends = [
    [{ processing: 1, succeeded: 1 }, null, null],
    [{ succeeded: 1, errored: 1 }, 'completed', 'b'],
    [{ succeeded: 1, canceled: 1 }, 'cancelled', 'b'],
    [{ canceled: 1, expired: 1 }, 'expired', 'b'],
  ] as const
  for (const [counts, ended, output_file_id] of ends) {
    answers['GET /v1/messages/batches/b'] = batch('b', counts)
    const seen = await api.read('b')
    assert.deepEqual([seen?.ended, seen?.output_file_id], [ended, output_file_id])
  }
  const canceling = { processing_status: 'canceling' }
  answers['GET /v1/messages/batches/b'] = batch('b', { processing: 1 }, canceling)
  const seen = await api.read('b')
  assert.deepEqual([seen?.ended, seen?.isKnown], [null, true])
  assert.equal(await api.read('none'), null)
})

test('a batch is recognised by the name in its results, and by nothing else', async () => {
  answers[LIST] = {
    data: [
      batch('later', { succeeded: 1, expired: 1 }),
      batch('larger', { succeeded: 3 }),
      batch('foreign', { succeeded: 2 }),
      batch('gone', { succeeded: 2 }),
      batch('other', { succeeded: 2 }),
      batch('goes-on', { processing: 2 }),
      batch('first', { succeeded: 2 }, { created_at: new Date(NOW - 1000).toISOString() }),
    ],
    has_more: false,
  }
  for (const id of ['first', 'larger', 'later']) answers[resultsOf(id)] = `no JSON\n${result(NAME)}`
  answers[resultsOf('other')] = result(newId('remote', NOW)) + result(NAME)
  answers[resultsOf('foreign')] = '{"custom_id":"a","result":{"type":"expired"}}\n'
  const found = await api.find(wanted)
  assert.deepEqual(
    found?.map(({ id }) => id),
    ['first', 'later'],
  )
})

test('whether a batch is there is undecided while one of as many requests goes on that nobody knows', async () => {
  const list = (...data: object[]): unknown => ({ data, has_more: false })
  answers[LIST] = list(batch('unknown', { processing: 2 }))
  await assert.rejects(api.find(wanted), UndecidedBatch)
  answers[LIST] = list(batch('of-another', { processing: 2 }), batch('smaller', { processing: 1 }))
  assert.deepEqual(await api.find(wanted), [])
  for (const content of [undefined, '', 'no JSON\n']) {
    answers = { [LIST]: list(batch('unreadable', { succeeded: 2 })), [resultsOf('unreadable')]: content }
    await assert.rejects(api.find(wanted), UndecidedBatch)
  }
  answers[LIST] = list(batch('without-results', { expired: 2 }, { results_url: null }))
  assert.deepEqual(await api.find(wanted), [])
  answers[LIST] = list(batch('names-results-late', { succeeded: 1, expired: 1 }, { results_url: null }))
  await assert.rejects(api.find(wanted), UndecidedBatch)
  const old = { created_at: new Date(NOW - 48 * 3_600_000).toISOString() }
  answers[LIST] = list(batch('old', { processing: 2 }, old))
  assert.deepEqual(await api.find(wanted), [])
  delete answers[LIST]
  assert.equal(await api.find(wanted), null)
})

test('pages of a list follow the last ID of the one before', async () => {
  answers[LIST] = { data: [batch('a', { processing: 1 })], has_more: true, last_id: 'a' }
  await api.find(wanted)
  assert.deepEqual(
    asked.map(({ url }) => url),
    ['/v1/messages/batches?limit=100', '/v1/messages/batches?limit=100&after_id=a'],
  )
})

test('the answer in a result keeps its bytes, and its ID is that of the line', () => {
  const read = readResultLine(Buffer.from(result(NAME).trim()), '/v1/messages')
  assert.deepEqual([read?.custom_id, read?.batch], [LINE, NAME])
  assert.ok(read?.result.kind === 'answered')
  assert.equal(read.result.body.toString(), MESSAGE)
})

test('errors of a line are what the same answer to a line that was sent alone would be', () => {
  const kindOf = (json: string): unknown => {
    const { result: found } = readResultLine(Buffer.from(result(NAME, json).trim()), '/v1/messages')!
    return [found.kind, found.status]
  }
  const errored = (type: string): string =>
    `{"type":"errored","error":{"type":"error","error":{"type":"${type}","message":"no"},"request_id":"r"}}`
  assert.deepEqual(kindOf(errored('invalid_request_error')), ['refused', 400])
  assert.deepEqual(kindOf(errored('request_too_large')), ['refused', 413])
  assert.deepEqual(kindOf(errored('rate_limit_error')), ['throttled', 429])
  assert.deepEqual(kindOf(errored('overloaded_error')), ['throttled', 529])
  assert.deepEqual(kindOf(errored('api_error')), ['failed', 500])
  assert.deepEqual(kindOf(errored('billing_error')), ['failed', 402])
  assert.deepEqual(kindOf(errored('toString')), ['failed', 500])
  const bare = '{"type":"errored","error":{"type":"rate_limit_error","message":"slow"}}'
  assert.deepEqual(kindOf(bare), ['throttled', 429], 'an error without an envelope')
  for (const left of ['expired', 'canceled', 'errored', 'succeeded', 'new'])
    assert.deepEqual(kindOf(`{"type":"${left}"}`), ['failed', null])
})

test('a line that another Offpeak ended alone, or with its batch, was not answered and is no mistake', () => {
  for (const code of ['request_cancelled', 'batch_cancelled', 'batch_expired', 'input_file_deleted']) {
    const error = { type: 'invalid_request_error', code, message: 'It was not sent.', param: null }
    const line = Buffer.from(JSON.stringify({ id: 'req_x', custom_id: 'a', response: null, error }))
    const { result } = readResultLine(line, '/v1/chat/completions') ?? {}
    assert.equal(result?.kind === 'failed' && result.code, 'upstream_unavailable', code)
  }
})

test('an answer with an error without content, or with a status in text or none, is an answer', () => {
  const body = {
    choices: [{ index: 0, message: { role: 'assistant', content: 'Yes' }, finish_reason: 'stop' }],
  }
  for (const [response, error] of [
    [{ status_code: 200, body }, {}],
    [
      { status_code: 200, body },
      { code: null, message: '' },
    ],
    [{ status_code: '200', body }, null],
    [{ body }, null],
  ]) {
    const line = Buffer.from(JSON.stringify({ custom_id: 'a', response, error }))
    assert.equal(readResultLine(line, '/v1/chat/completions')?.result.kind, 'answered', line.toString())
  }
  for (const [response, error, kind] of [
    [{ status_code: '400', body: { error: { message: 'no' } } }, null, 'refused'],
    [{ status_code: 200, body }, { code: 'server_error', message: 'It broke.' }, 'failed'],
    [{ body: { error: { message: 'It broke.' } } }, null, 'failed'],
  ] as const) {
    const line = Buffer.from(JSON.stringify({ custom_id: 'a', response, error }))
    assert.equal(readResultLine(line, '/v1/chat/completions')?.result.kind, kind, line.toString())
  }
})
