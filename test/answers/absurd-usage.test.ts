// Servers that report what no model can have used: it is billed as far as it is possible, told, and neither stops
// the worker nor spends what others may.
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
