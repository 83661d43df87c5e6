// Servers that report what no model can have used: it is billed as far as it is possible, told, and neither stops
// the worker nor spends what others may.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { completion, echo, send, testUpstream } from './fakes/upstream.ts'
import { line, TestService } from './service.ts'

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

test('usage beyond the window is billed as the window, in result, record and report alike', async () => {
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
  const record = await service.json<{ usage: object; usage_reported: object }>('GET', `/v1/requests/${a?.id}`)
  assert.deepEqual(record.usage, {
    prompt_tokens: WINDOW,
    completion_tokens: WINDOW,
    total_tokens: 2 * WINDOW,
  })
  assert.deepEqual(record.usage_reported, ABSURD)
  const used = await service.json<{ total_tokens: number; cost_usd: number }>('GET', '/v1/usage/entities')
  assert.deepEqual([used.total_tokens, used.cost_usd], [6 * WINDOW, 0.006])
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
