// Servers that report what no model can have used, or less than they used: it is billed as far as it is possible, told, and
// neither stops the worker nor spends what others may.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { completion, echo, send, testUpstream } from '../fakes/upstream.ts'
import { line, TestService } from '../service.ts'

const ABSURD = { prompt_tokens: 99_999_999, completion_tokens: 100_000_000, total_tokens: 100_000_000 }
const WINDOW = 1000

function config(base_url: string, price: number, window: number | null = WINDOW): string {
  return `
models:
  - id: m
    ${window === null ? '' : `context_window: ${window}`}
    price: {input_per_mtok: ${price}, output_per_mtok: ${price}}
    upstreams: [{type: openai, base_url: "${base_url}", timeout: 5s}]
worker: {flush_interval: 20ms, lease: 2s}`
}

/** No line says anything that a window could bound sooner. */
const LIMIT = 5
/** What a chat template may write around a prompt. */
const TEMPLATE = 4_096

test('usage beyond what a line can use is billed as far as it can be, in result, record and report alike', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', ABSURD)))
  await using service = await TestService.start(config(upstream.base_url, 1_000, null))
  const lines: { body?: object }[] = [
    line('a', 'a', { max_tokens: LIMIT }),
    line('b', 'b', { max_tokens: LIMIT, n: 3 }),
  ]
  const batch = await service.run(lines)
  const [a, b] = await service.lines(batch.output_file_id)
  const usageOf = (i: number, output: number) => {
    const prompt = JSON.stringify(lines[i]!.body).length + TEMPLATE
    const counts = { prompt_tokens: prompt, completion_tokens: output, total_tokens: prompt + output }
    return { ...counts, cost_usd: (prompt + output) / 1_000 }
  }
  assert.deepEqual(a?.response?.body.usage, usageOf(0, LIMIT))
  assert.deepEqual(b?.response?.body.usage, usageOf(1, 3 * LIMIT))
  assert.ok(batch.cost_usd < 10, `${batch.cost_usd}`)
  const record = await service.json<{ usage: object; usage_reported: object }>('GET', `/v1/requests/${a?.id}`)
  const { cost_usd: _, ...billed } = usageOf(0, LIMIT)
  assert.deepEqual(record.usage, billed)
  assert.deepEqual(record.usage_reported, ABSURD)
  const used = await service.json<{ total_tokens: number }>('GET', '/v1/usage/entities')
  assert.equal(used.total_tokens, usageOf(0, LIMIT).total_tokens + usageOf(1, 3 * LIMIT).total_tokens)
})

test('neither prompt nor choice is billed beyond a window that is smaller', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', ABSURD)))
  await using service = await TestService.start(config(upstream.base_url, 1))
  const batch = await service.run([line('a'), line('b', 'b', { n: 3 })])
  const [a, b] = await service.lines(batch.output_file_id)
  const usageOf = (tokens: number) => ({
    prompt_tokens: WINDOW,
    completion_tokens: tokens,
    total_tokens: WINDOW + tokens,
    cost_usd: (WINDOW + tokens) / 1_000_000,
  })
  assert.deepEqual(a?.response?.body.usage, usageOf(WINDOW))
  assert.deepEqual(b?.response?.body.usage, usageOf(3 * WINDOW))
})

test('lines that cost more than can be counted end like others, and nobody waits for their commits', async () => {
  await using upstream = await testUpstream((call) =>
    call.body.messages[0]?.content === 'dear'
      ? send(call.response, 200, completion('ok', ABSURD))
      : echo(call),
  )
  // A dollar a token, and a window that nobody knows.
  await using service = await TestService.start(config(upstream.base_url, 1_000_000, null))
  const dear = Array.from({ length: 20 }, (_, i) => line(`dear${i}`, 'dear', { n: 8 }))
  const first = await service.run(dear)
  assert.deepEqual([first.status, first.request_counts.completed], ['completed', 20])
  const second = await service.run(dear)
  assert.deepEqual([second.status, second.request_counts.completed], ['completed', 20])
  const csv = await service.request('GET', '/v1/usage/entities?format=csv&group_by=entity')
  assert.equal(csv.status, 200)
  await csv.text()
  assert.equal((await service.run([line('cheap')])).request_counts.completed, 1)
})

test('a total below the sum of its parts counts as the sum, and the record keeps what was reported', async () => {
  const reported = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 3 }
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', reported)))
  await using service = await TestService.start(config(upstream.base_url, 1))
  const batch = await service.run([line('a')])
  const [a] = await service.lines(batch.output_file_id)
  assert.equal(a?.response?.body.usage.total_tokens, 15)
  const record = await service.json<{ usage: object; usage_reported: object }>('GET', `/v1/requests/${a?.id}`)
  assert.deepEqual(record.usage, { ...reported, total_tokens: 15 })
  assert.deepEqual(record.usage_reported, reported)
  const used = await service.json<{ total_tokens: number }>('GET', '/v1/usage/entities')
  assert.equal(used.total_tokens, 15)
})

test('a usage that is written anew has the tokens of every part of the prompt', async () => {
  const prompt_tokens_details = { cached_tokens: 2, cache_write_tokens: 4 }
  const reported = {
    ...{ prompt_tokens: 10, completion_tokens: 5, total_tokens: 3, prompt_tokens_details },
    cache_creation: { ephemeral_1h_input_tokens: 3 },
  }
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', reported)))
  await using service = await TestService.start(config(upstream.base_url, 1))
  const [a] = await service.lines((await service.run([line('a')])).output_file_id)
  assert.deepEqual(a?.response?.body.usage.prompt_tokens_details, {
    ...prompt_tokens_details,
    cache_write_1h_tokens: 3,
  })
})

interface LineRecord {
  usage: object
  usage_reported?: object
  usage_estimated?: true
  cost_usd: number
}

test('tokens that a model thought beside its answer, or that only the total has, are billed as output', async () => {
  const plain = { prompt_tokens: 100, completion_tokens: 9, total_tokens: 434 }
  const thought = { ...plain, completion_tokens_details: { reasoning_tokens: 325 } }
  const reported: Record<string, object> = { thought, plain }
  await using upstream = await testUpstream((call) =>
    send(call.response, 200, completion('ok', reported[call.body.messages[0]?.content ?? ''] ?? null)),
  )
  await using service = await TestService.start(config(upstream.base_url, 1, null))
  const batch = await service.run(Object.keys(reported).map((name) => line(name, name, { max_tokens: 500 })))
  assert.equal(batch.cost_usd, (2 * 434) / 1e6)
  const billed = { prompt_tokens: 100, completion_tokens: 334, total_tokens: 434 }
  for (const { id, custom_id, response } of await service.lines(batch.output_file_id)) {
    const { cost_usd, ...usage } = response?.body.usage ?? { cost_usd: 0 }
    const details = custom_id === 'thought' ? { completion_tokens_details: { reasoning_tokens: 325 } } : {}
    assert.deepEqual([usage, cost_usd], [{ ...billed, ...details }, 434 / 1e6])
    const record = await service.json<LineRecord>('GET', `/v1/requests/${id}`)
    const parts = custom_id === 'thought' ? { reasoning_tokens: 325 } : {}
    assert.deepEqual(
      [record.usage, record.usage_reported, record.usage_estimated],
      [{ ...billed, ...parts }, reported[custom_id], undefined],
    )
  }
})

test('zeros beside an answer are no usage: they are estimated, at every endpoint, and a cap counts the estimate', async () => {
  const text = 'word '.repeat(200)
  const zeros = (...names: string[]): object => Object.fromEntries(names.map((name) => [name, 0]))
  const chat = zeros('prompt_tokens', 'completion_tokens', 'total_tokens')
  const api = zeros('input_tokens', 'output_tokens')
  const answers: Record<string, [ask: object, answer: object]> = {
    '/v1/chat/completions': [
      { messages: [{ role: 'user', content: text }] },
      { choices: [{ message: { role: 'assistant', content: text } }], usage: chat },
    ],
    '/v1/completions': [{ prompt: text }, { choices: [{ text }], usage: chat }],
    '/v1/responses': [
      { input: text },
      { status: 'completed', output: [{ content: [{ type: 'output_text', text }] }], usage: api },
    ],
    '/v1/messages': [
      { messages: [{ role: 'user', content: text }] },
      { content: [{ type: 'text', text }], usage: { ...api, cache_read_input_tokens: 0 } },
    ],
    '/v1/embeddings': [
      { input: text },
      { data: [{ embedding: [0.5] }], usage: zeros('prompt_tokens', 'total_tokens') },
    ],
  }
  await using upstream = await testUpstream(({ response, path }) =>
    send(response, 200, JSON.stringify(answers[path]?.[1])),
  )
  await using service = await TestService.start(
    config(upstream.base_url, 1).replace('    price', `    endpoints: [${Object.keys(answers)}]\n    price`),
  )
  for (const [url, [ask, { usage }]] of Object.entries(answers) as [string, [object, { usage: object }]][]) {
    const body = { model: 'm', ...(url === '/v1/messages' && { max_tokens: 500 }), ...ask }
    const lines = [{ custom_id: 'a', method: 'POST', url, body }]
    const batch = await service.run(lines, { endpoint: url })
    assert.equal(batch.request_counts.completed, 1, JSON.stringify(await service.lines(batch.error_file_id)))
    const [a] = await service.lines(batch.output_file_id)
    const record = await service.json<LineRecord>('GET', `/v1/requests/${a?.id}`)
    assert.deepEqual([record.usage_estimated, record.usage_reported], [true, usage], url)
    const least = text.length / 4 + (url === '/v1/embeddings' ? 0 : text.length / 4)
    assert.ok(record.cost_usd >= least / 1e6 && record.cost_usd <= (1.2 * least) / 1e6, url)
    const counts = Object.values(a?.response?.body.usage ?? {}).map(Number)
    assert.ok(counts.every((count) => count > 0) && batch.cost_usd === record.cost_usd, url)
  }
})

test('a part of a usage that is zero is estimated, and an answer that says nothing costs its prompt', async () => {
  const usages: Record<string, [object, string]> = {
    prompt: [{ prompt_tokens: 0, completion_tokens: 7, total_tokens: 7 }, 'four'],
    output: [{ prompt_tokens: 7, completion_tokens: 0, total_tokens: 7 }, 'four'],
    silent: [{ prompt_tokens: 7, completion_tokens: 0, total_tokens: 7 }, ''],
  }
  await using upstream = await testUpstream((call) => {
    const [usage, said] = usages[call.body.messages[0]?.content ?? ''] ?? [null, '']
    send(call.response, 200, completion(said, usage))
  })
  await using service = await TestService.start(config(upstream.base_url, 1))
  const batch = await service.run(Object.keys(usages).map((name) => line(name, name)))
  for (const { custom_id, id } of await service.lines(batch.output_file_id)) {
    const { usage, usage_estimated } = await service.json<{
      usage: { prompt_tokens: number; completion_tokens: number; total_tokens: number }
      usage_estimated?: true
    }>('GET', `/v1/requests/${id}`)
    assert.equal(usage_estimated, custom_id === 'silent' ? undefined : true, custom_id)
    if (custom_id === 'prompt') assert.ok(usage.prompt_tokens > 0 && usage.completion_tokens === 7)
    else assert.equal(usage.prompt_tokens, 7)
    assert.equal(usage.completion_tokens === 0, custom_id === 'silent')
    assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
  }
})

test('an answer of zeros does not pass a cap', async () => {
  const zeros = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }
  const text = 'word '.repeat(80)
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion(text, zeros)))
  await using service = await TestService.start(config(upstream.base_url, 100))
  await service.json('POST', '/v1/limits', {
    scope: 'project',
    metric: 'cost_usd',
    window: 'month',
    amount: 0.11,
  })
  const lines = (round: number) =>
    Array.from({ length: 5 }, (_, i) => line(`l${round}-${i}`, text, { max_tokens: 100 }))
  const first = await service.run(lines(1))
  assert.ok(first.cost_usd > 0.09 && first.cost_usd <= 0.11, `${first.cost_usd}`)
  const { id } = await service.upload(
    lines(2)
      .map((one) => JSON.stringify(one))
      .join('\n'),
  )
  const order = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  assert.equal((await service.request('POST', '/v1/batches', order)).status, 429)
})
