// Batches of every endpoint with the official OpenAI SDK, against the whole service before a simulated model server.
import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import OpenAI, { toFile } from 'openai'
import { simServer } from '../../src/backends/sim/sim-server.ts'
import { type BatchEndpoint, ENDPOINT_PATHS, type EndpointPath } from '../../src/domain/endpoint.ts'
import { send, testUpstream } from '../fakes/upstream.ts'
import { TestService, type WireBatch } from '../service.ts'

interface ResultLine {
  id: string
  custom_id: string
  response: { status_code: number; body: Record<string, unknown> } | null
  error: { code: string; message: string; param?: string } | null
}

interface SimulatedMessage {
  type: string
  content: { type: string; text?: string; name?: string; input?: { n: unknown } }[]
  stop_reason: string
  usage: { input_tokens: number; output_tokens: number; cost_usd: number }
}

function configOf(base_url: string): string {
  const upstreams = `upstreams: [{type: openai, base_url: "${base_url}", timeout: 5s}]`
  return `
models:
  - {id: all, price: {input_per_mtok: 1, output_per_mtok: 2}, endpoints: [${ENDPOINT_PATHS.join(', ')}], ${upstreams}}
  - {id: vectors, context_window: 100, price: {input_per_mtok: 1, output_per_mtok: 2}, endpoints: [embeddings], ${upstreams}}
  - {id: chat, ${upstreams}}
retry: {attempts_max: 2, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 0ms}
worker: {flush_interval: 20ms, lease: 2s}`
}

async function start(t: TestContext): Promise<{ service: TestService; client: OpenAI }> {
  const simulator = await simServer({ port: 0 })
  const service = await TestService.start(configOf(simulator.base_url))
  t.after(async () => {
    await service[Symbol.asyncDispose]()
    await simulator.close()
  })
  return { service, client: new OpenAI({ apiKey: service.key, baseURL: `${service.url}/v1` }) }
}

function lineOf(custom_id: string, url: string, body: object) {
  return { custom_id, method: 'POST', url, body: { model: 'all', ...body } }
}

/** Uploads and runs with the SDK; the result lines by custom_id. */
async function runWith(
  { client, service }: { client: OpenAI; service: TestService },
  endpoint: BatchEndpoint,
  lines: readonly object[],
) {
  const text = lines.map((line) => JSON.stringify(line)).join('\n')
  const file = await client.files.create({
    file: await toFile(Buffer.from(text), 'in.jsonl'),
    purpose: 'batch',
  })
  await client.files.waitForProcessing(file.id, { pollInterval: 10, maxWait: 10_000 })
  const { id } = await client.post<OpenAI.Batch>('/batches', {
    body: { input_file_id: file.id, endpoint, completion_window: '24h' },
  })
  await service.ended(id)
  const batch = await client.batches.retrieve(id)
  const results = new Map<string, ResultLine>()
  for (const file_id of [batch.output_file_id, batch.error_file_id]) {
    if (!file_id) continue
    const content = await (await client.files.content(file_id)).text()
    for (const line of content.trimEnd().split('\n')) {
      const result: ResultLine = JSON.parse(line)
      results.set(result.custom_id, result)
    }
  }
  return { batch, results, body: (id: string) => results.get(id)?.response?.body }
}

test('embeddings of a text, of several, and of token IDs, as numbers and as base64', async (t) => {
  const sdk = await start(t)
  const { batch, results } = await runWith(sdk, '/v1/embeddings', [
    lineOf('one', '/v1/embeddings', { input: 'hello', dimensions: 8 }),
    lineOf('many', '/v1/embeddings', { input: ['hello', 'world'], dimensions: 8 }),
    lineOf('ids', '/v1/embeddings', { input: [[1, 2, 3], [4]], dimensions: 8 }),
    lineOf('base64', '/v1/embeddings', { input: 'hello', dimensions: 8, encoding_format: 'base64' }),
  ])
  assert.equal(batch.endpoint, '/v1/embeddings')
  assert.equal(batch.status, 'completed')
  const answer = (id: string) => {
    const { body } = results.get(id)?.response ?? {}
    return body as unknown as OpenAI.CreateEmbeddingResponse & { usage: { cost_usd: number } }
  }
  const vector = answer('one').data[0]?.embedding
  assert.equal(vector?.length, 8)
  assert.deepEqual(answer('many').data[0]?.embedding, vector)
  assert.equal(answer('many').data.length, 2)
  const encoded = Buffer.from(String(answer('base64').data[0]?.embedding), 'base64')
  const floats = Array.from({ length: 8 }, (_, i) => encoded.readFloatLE(4 * i))
  for (const [i, value] of floats.entries()) assert.ok(Math.abs(value - (vector?.[i] ?? 0)) < 1e-6)
  const { usage } = answer('ids')
  assert.deepEqual(usage, { prompt_tokens: 4, total_tokens: 4, cost_usd: 0.000004 })
})

test('completions of several prompts, with a choice for each', async (t) => {
  const sdk = await start(t)
  const { body } = await runWith(sdk, '/v1/completions', [
    lineOf('a', '/v1/completions', { prompt: ['Once', 'Twice'], n: 2, max_tokens: 5 }),
  ])
  const answer = body('a') as unknown as OpenAI.Completion & { usage: { cost_usd: number } }
  assert.deepEqual(
    answer.choices.map(({ index, finish_reason }) => [index, finish_reason]),
    [0, 1, 2, 3].map((index) => [index, 'length']),
  )
  assert.equal(answer.usage.completion_tokens, 20)
  assert.equal(answer.usage.cost_usd, (answer.usage.prompt_tokens + 40) / 1_000_000)
})

test('responses, whose tokens have other names', async (t) => {
  const sdk = await start(t)
  const { body } = await runWith(sdk, '/v1/responses', [
    lineOf('a', '/v1/responses', { input: 'Hi', instructions: 'Be brief', max_output_tokens: 5 }),
    lineOf('b', '/v1/responses', {
      input: [{ role: 'user', content: [{ type: 'input_text', text: 'Hi' }] }],
    }),
  ])
  const answer = body('a') as unknown as OpenAI.Responses.Response & { usage: { cost_usd: number } }
  assert.equal(answer.status, 'incomplete')
  assert.equal(answer.usage.output_tokens, 5)
  assert.equal(answer.usage.cost_usd, (answer.usage.input_tokens + 10) / 1_000_000)
  assert.equal(body('b')?.status, 'completed')
})

test('messages, with a tool, a schema, a limit, and a line without one', async (t) => {
  const { service } = await start(t)
  const messages = [{ role: 'user', content: 'Hi' }]
  const schema = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] }
  const tools = [{ name: 'weather', input_schema: schema }]
  const called = [
    ...messages,
    { role: 'assistant', content: [{ type: 'tool_use', id: 't', name: 'weather', input: { n: 1 } }] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't', content: 'sunny' }] },
  ]
  const bodies = {
    cut: { messages, system: 'Be brief', max_tokens: 5 },
    tool: { messages, tools, tool_choice: { type: 'any' }, max_tokens: 100 },
    result: { messages: called, tools, max_tokens: 10_000 },
    schema: { messages, output_config: { format: { type: 'json_schema', schema } }, max_tokens: 100 },
    bare: { messages },
    n: { messages, max_tokens: 5, n: 2 },
  }
  const lines = Object.entries(bodies).map(([id, body]) => lineOf(id, '/v1/messages', body))
  const batch = await service.run(lines, { endpoint: '/v1/messages' })
  const failed = await service.lines(batch.error_file_id)
  assert.deepEqual(
    failed.map(({ custom_id, error }) => [custom_id, error?.code, error?.message]),
    [
      ['bare', 'invalid_request', '`max_tokens` is missing.'],
      ['n', 'invalid_request', '`n` is read by some servers only. Use one line for each answer instead.'],
    ],
  )
  const answers = Object.fromEntries(
    (await service.lines(batch.output_file_id)).map(({ custom_id, response }) => [custom_id, response?.body]),
  )
  const message = (id: string) => answers[id] as unknown as SimulatedMessage
  const cut = message('cut')
  const tool = message('tool')
  const [call] = tool.content
  assert.deepEqual([cut.type, cut.stop_reason, cut.usage.output_tokens], ['message', 'max_tokens', 5])
  assert.equal(cut.usage.cost_usd, (cut.usage.input_tokens + 10) / 1_000_000)
  assert.deepEqual([tool.stop_reason, call?.type, call?.name], ['tool_use', 'tool_use', 'weather'])
  assert.equal(typeof call?.input?.n, 'number')
  const result = message('result')
  assert.deepEqual([result.stop_reason, result.content[0]?.type], ['end_turn', 'text'])
  assert.equal(typeof JSON.parse(message('schema').content[0]?.text ?? '').n, 'number')
  const table = await service.request('GET', `/v1/batches/${batch.id}/results?format=csv`)
  assert.match(
    await table.text(),
    /^custom_id,answer,error,input_tokens,output_tokens,cost_usd\ncut,Simulated answer/,
  )
})

test('a message reaches its server byte for byte, and its cache is billed at the price of cached input', async (t) => {
  const upstream = await testUpstream()
  const upstreams = `upstreams: [{type: openai, base_url: "${upstream.base_url}", timeout: 5s}]`
  const price = 'price: {input_per_mtok: 10, cached_input_per_mtok: 1, output_per_mtok: 2}'
  const service = await TestService.start(
    `models: [{id: all, ${price}, endpoints: [messages], ${upstreams}}]`,
  )
  t.after(async () => {
    await service[Symbol.asyncDispose]()
    await upstream.close()
  })
  const usage =
    '{"input_tokens":3,"cache_read_input_tokens":20,"cache_creation_input_tokens":100,"output_tokens":5}'
  const seen: unknown[] = []
  upstream.reply = (call) => {
    seen.push(call.path, call.response.req.headers['anthropic-version'], call.bytes.toString())
    send(call.response, 200, `{"type":"message","content":[],"stop_reason":"refusal","usage":${usage}}`)
  }
  const line = lineOf('a', '/v1/messages', { max_tokens: 9, messages: [{ role: 'user', content: 'Hi' }] })
  const batch = await service.run([line], { endpoint: '/v1/messages' })
  const { body } = line
  assert.deepEqual(seen, ['/v1/messages', '2023-06-01', JSON.stringify(body)])
  const [answer] = await service.lines(batch.output_file_id)
  assert.deepEqual(answer?.response?.body.usage, {
    ...JSON.parse(usage),
    cost_usd: (103 * 10 + 20 * 1 + 5 * 2) / 1_000_000,
  })
})

test('rerank and score', async (t) => {
  const sdk = await start(t)
  const documents = ['red apples', 'the capital of France is Paris']
  const query = 'what is the capital of France'
  const rerank = await runWith(sdk, '/v1/rerank', [lineOf('r', '/v1/rerank', { query, documents })])
  const { results } = rerank.body('r') as unknown as { results: { index: number }[] }
  assert.deepEqual(
    results.map(({ index }) => index),
    [1, 0],
  )
  const score = await runWith(sdk, '/v1/score', [
    lineOf('s', '/v1/score', { text_1: query, text_2: documents }),
  ])
  const { data, usage } = score.body('s') as unknown as {
    data: { index: number; score: number }[]
    usage: { total_tokens: number; cost_usd: number }
  }
  assert.ok((data[1]?.score ?? 0) > (data[0]?.score ?? 1))
  assert.ok(usage.cost_usd > 0)
  const { body } = await sdk.service
    .request('GET', `/v1/requests/${score.results.get('s')?.id}`)
    .then(async (response) => ({ body: JSON.parse(await response.text()) }))
  assert.deepEqual(body.usage, {
    prompt_tokens: usage.total_tokens,
    completion_tokens: 0,
    total_tokens: usage.total_tokens,
  })
})

test('a line of another endpoint than its batch, or than its model serves, fails alone', async (t) => {
  const sdk = await start(t)
  const { batch, results } = await runWith(sdk, '/v1/embeddings', [
    lineOf('good', '/v1/embeddings', { input: 'x' }),
    lineOf('alias', '/v1/embeddings', { input: 'x', model: 'vectors' }),
    lineOf('other url', '/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }] }),
    lineOf('other model', '/v1/embeddings', { input: 'x', model: 'chat' }),
    lineOf('no input', '/v1/embeddings', {}),
    lineOf('empty', '/v1/embeddings', { input: [] }),
    lineOf('mixed', '/v1/embeddings', { input: ['x', 1] }),
    lineOf('encoding', '/v1/embeddings', { input: 'x', encoding_format: 'hex' }),
    lineOf('dimensions', '/v1/embeddings', { input: 'x', dimensions: 0 }),
  ])
  assert.deepEqual(batch.request_counts, { total: 9, completed: 2, failed: 7 })
  const errors = [...results.values()].filter(({ error }) => error !== null)
  assert.deepEqual(
    errors.map(({ custom_id, error }) => [custom_id, error?.code, error?.param]),
    [
      ['other url', 'endpoint_mismatch', 'url'],
      ['other model', 'endpoint_not_supported', 'model'],
      ['no input', 'invalid_request', 'input'],
      ['empty', 'invalid_request', 'input'],
      ['mixed', 'invalid_request', 'input'],
      ['encoding', 'invalid_request', 'encoding_format'],
      ['dimensions', 'invalid_request', 'dimensions'],
    ],
  )
  assert.match(
    results.get('other url')?.error?.message ?? '',
    /"\/v1\/chat\/completions".*"\/v1\/embeddings"/,
  )
  assert.match(results.get('other model')?.error?.message ?? '', /"chat" does not serve \/v1\/embeddings/)
})

test('the lines of a mixed batch go to their own endpoints, by themselves and in a retry', async (t) => {
  const sdk = await start(t)
  const { batch, results } = await runWith(sdk, 'mixed', [
    lineOf('chat', '/v1/chat/completions', { messages: [{ role: 'user', content: 'x' }] }),
    lineOf('vector', '/v1/embeddings', { input: 'x' }),
    lineOf('rank', '/v1/rerank', { query: 'q', documents: ['a', 'b'] }),
    lineOf('wrong', '/v1/embeddings', {}),
  ])
  assert.equal(batch.endpoint, 'mixed')
  assert.deepEqual(batch.request_counts, { total: 4, completed: 3, failed: 1 })
  assert.equal(results.get('wrong')?.error?.param, 'input')
  const { service } = sdk
  const retry = await service.json<WireBatch>('POST', `/v1/batches/${batch.id}/retry`)
  assert.equal((await service.ended(retry.id)).endpoint, 'mixed')
  const order = { input_file_id: batch.input_file_id, endpoint: 'mixed', completion_window: '24h' }
  for (const field of [{ dedupe: true }, { reask: { max: 1, mode: 'repeat' } }])
    assert.equal((await service.request('POST', '/v1/batches', { ...order, ...field })).status, 400)
})

test('a batch in which every line is for another endpoint fails, and an unknown endpoint is refused', async (t) => {
  const sdk = await start(t)
  const { batch, results } = await runWith(sdk, '/v1/rerank', [lineOf('a', '/v1/embeddings', { input: 'x' })])
  assert.equal(batch.status, 'failed')
  assert.equal(results.get('a')?.error?.code, 'endpoint_mismatch')
  await assert.rejects(
    sdk.client.batches.create({
      input_file_id: batch.input_file_id,
      endpoint: '/v1/moderations',
      completion_window: '24h',
    }),
    /`endpoint` must be one of "\/v1\/chat\/completions", .*not "\/v1\/moderations"/,
  )
})

test('models show what they serve', async (t) => {
  const { client } = await start(t)
  const shown = (model: OpenAI.Model) => (model as unknown as { endpoints: string[] }).endpoints
  assert.deepEqual(shown(await client.models.retrieve('vectors')), ['/v1/embeddings'])
  assert.deepEqual(shown(await client.models.retrieve('chat')), ['/v1/chat/completions'])
})

test('a server that has no such endpoint, or answers with something else, is not retried for ever', async (t) => {
  const upstream = await testUpstream()
  const service = await TestService.start(configOf(upstream.base_url))
  t.after(async () => {
    await service[Symbol.asyncDispose]()
    await upstream.close()
  })
  const answers: Record<string, [number, string]> = {
    none: [404, '{"detail":"Not Found"}'],
    off: [501, '{"error":{"code":501,"message":"This server does not support embeddings."}}'],
    chat: [
      200,
      '{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}',
    ],
    bare: [200, '{"data":[{"index":0,"embedding":[0.5]}]}'],
    total: [200, '{"data":[{"index":0,"embedding":"AAAA"}],"usage":{"total_tokens":3}}'],
    absurd: [200, '{"data":[{"index":0,"embedding":[]}],"usage":{"prompt_tokens":900,"total_tokens":900}}'],
  }
  const paths = new Set<string>()
  upstream.reply = (call) => {
    paths.add(call.path)
    const [status, text] = answers[String([call.body.input].flat()[0])] ?? [500, '']
    send(call.response, status, text)
  }
  const lines = Object.keys(answers).map((input) =>
    lineOf(input, '/v1/embeddings', {
      model: 'vectors',
      input: input === 'absurd' ? ['absurd', 'b'] : input,
    }),
  )
  const batch = await service.run(lines, { endpoint: '/v1/embeddings' })
  assert.deepEqual([...paths], ['/v1/embeddings'])
  const failed = await service.lines(batch.error_file_id)
  assert.deepEqual(
    failed.map(({ custom_id, error }) => [custom_id, error?.code]),
    [
      ['none', 'endpoint_not_supported'],
      ['off', 'endpoint_not_supported'],
      ['chat', 'upstream_invalid_response'],
    ],
  )
  assert.match(failed[2]?.error?.message ?? '', /the answer has no data/)
  const usages = (await service.lines(batch.output_file_id)).map(({ response }) => response?.body.usage)
  assert.deepEqual(usages, [
    { prompt_tokens: 1, total_tokens: 1, cost_usd: 0.000001 },
    { total_tokens: 3, cost_usd: 0.000003 },
    // Two inputs, each of a window at most.
    { prompt_tokens: 200, total_tokens: 200, cost_usd: 0.0002 },
  ])
})

const text = (index: number) => ({ index, text: 'x', finish_reason: 'stop' })
const vector = (index: number) => ({ index, embedding: [1, 2] })
const score = (index: number) => ({ index, relevance_score: 0.5 })
const usage = { prompt_tokens: 3, completion_tokens: 3, total_tokens: 6 }
const choice = (index: number) => ({
  index,
  message: { role: 'assistant', content: 'x' },
  finish_reason: 'stop',
})

/** What is answered to a request: the JSON, or its text; the code of the line's error, or what it has. */
type AnswerRow = [
  what: string,
  url: EndpointPath,
  body: object,
  answer: object | string,
  ends: object | string,
]

const N = { messages: [{ role: 'user', content: 'hi' }], max_tokens: 5 }
const THREE = { input: ['a', 'b', 'c'] }
const RANK = { query: 'q', documents: ['a', 'b', 'c'] }
const WRONG = 'upstream_invalid_response'
const ANSWERS: AnswerRow[] = [
  ['all choices', '/v1/chat/completions', { ...N, n: 2 }, { choices: [0, 1].map(choice), usage }, {}],
  [
    'one of three choices',
    '/v1/chat/completions',
    { ...N, n: 3 },
    { choices: [choice(0)], usage },
    { missing: 2 },
  ],
  [
    'choices that are all the first',
    '/v1/chat/completions',
    { ...N, n: 2 },
    { choices: [choice(0), choice(0)] },
    {},
  ],
  ['-Infinity', '/v1/chat/completions', N, `{"choices":[{"index":0,"logprobs":-Infinity}]}`, WRONG],
  [
    'all texts',
    '/v1/completions',
    { prompt: ['a', 'b'], n: 2 },
    { choices: [0, 1, 2, 3].map(text), usage },
    {},
  ],
  ['the best text', '/v1/completions', { prompt: 'a', best_of: 3 }, { choices: [text(0)], usage }, {}],
  [
    'fewer texts than prompts',
    '/v1/completions',
    { prompt: ['a', 'b'] },
    { choices: [text(1)], usage },
    { missing: 1 },
  ],
  [
    'texts of one prompt',
    '/v1/completions',
    { prompt: ['a', 'b'] },
    { choices: [0, 0].map(text), usage },
    WRONG,
  ],
  ['all vectors', '/v1/embeddings', THREE, { data: [2, 1, 0].map(vector), usage }, {}],
  [
    'vectors without places',
    '/v1/embeddings',
    THREE,
    { data: [1, 2, 3].map(() => ({ embedding: [1] })), usage },
    {},
  ],
  ['vectors from 1', '/v1/embeddings', THREE, { data: [1, 2, 3].map(vector), usage }, WRONG],
  ['vectors in one place', '/v1/embeddings', THREE, { data: [0, 0, 0].map(vector), usage }, WRONG],
  ['too few vectors', '/v1/embeddings', THREE, { data: [0, 2].map(vector), usage }, { missing: 1 }],
  ['too many vectors', '/v1/embeddings', THREE, { data: [0, 1, 2, 3].map(vector), usage }, WRONG],
  ['no vectors', '/v1/embeddings', THREE, { data: [], usage }, WRONG],
  ['a vector of null', '/v1/embeddings', { input: 'a' }, { data: [{ index: 0, embedding: null }] }, WRONG],
  ['NaN', '/v1/embeddings', { input: 'a' }, '{"data":[{"index":0,"embedding":[NaN,1]}]}', WRONG],
  ['all ranks', '/v1/rerank', RANK, { results: [2, 0, 1].map(score), usage }, {}],
  ['the best ranks', '/v1/rerank', { ...RANK, top_n: 2 }, { results: [2, 0].map(score), usage }, {}],
  ['too few ranks', '/v1/rerank', { ...RANK, top_n: 2 }, { results: [score(2)], usage }, { missing: 1 }],
  ['a rank of nothing', '/v1/rerank', RANK, { results: [score(3)], usage }, WRONG],
  ['ranks by score', '/v1/rerank', RANK, { results: [0, 1, 2].map((index) => ({ index, score: 0.5 })) }, {}],
  [
    'a bare list',
    '/v1/rerank',
    RANK,
    ` ${JSON.stringify([0, 1, 2].map((index) => ({ index, score: 0.5 })))}`,
    {},
  ],
  [
    'pairs',
    '/v1/score',
    { text_1: 'a', text_2: ['b', 'c'] },
    { data: [{ index: 0, score: 1 }] },
    { missing: 1 },
  ],
]

test('an answer is compared with its request: what is missing is told, and what is useless is asked for once', async () => {
  const byContent = new Map(ANSWERS.map(([what, , , answer]) => [what, answer]))
  const calls: string[] = []
  await using upstream = await testUpstream(({ body, response }) => {
    const { user } = body as unknown as { user: string }
    calls.push(user)
    const answer = byContent.get(user) ?? ''
    send(response, 200, typeof answer === 'string' ? answer : JSON.stringify(answer))
  })
  await using service = await TestService.start(configOf(upstream.base_url))
  for (const url of new Set(ANSWERS.map(([, at]) => at))) {
    const rows = ANSWERS.filter(([, at]) => at === url)
    const lines = rows.map(([what, , body]) => lineOf(what, url, { ...body, user: what }))
    const batch = await service.run(lines, { endpoint: url })
    const files = [batch.output_file_id, batch.error_file_id].filter((id) => id !== null)
    const results = (
      await Promise.all(files.map((id) => service.lines(id)))
    ).flat() as unknown as ResultLine[]
    for (const [what, , , , ends] of rows) {
      const { id, error, ...result } =
        results.find(({ custom_id }) => custom_id === what) ?? assert.fail(what)
      const { missing } = await service.json<{ missing?: number }>('GET', `/v1/requests/${id}`)
      if (typeof ends === 'string') assert.equal(error?.code, ends, what)
      else
        assert.deepEqual(
          [error, missing, Object(result).missing],
          [null, Object(ends).missing, missing],
          what,
        )
    }
  }
  assert.deepEqual(calls.sort(), ANSWERS.map(([what]) => what).sort(), 'each is asked for once')
})

test('pairs are sent to their endpoint, at whatever address a line names it', async (t) => {
  const at = await start(t)
  const pair = { text_1: 'a', text_2: 'b' }
  const lines = ['/v1/score', '/score', '/api/score'].map((url) => lineOf(url, url, pair))
  const { results } = await runWith(at, '/v1/score', lines)
  for (const url of ['/v1/score', '/score', '/api/score'])
    assert.equal(results.get(url)?.response?.status_code, 200, url)
})
