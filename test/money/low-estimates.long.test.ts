// Caps where lines cost far more than was estimated: what a finished line really cost counts at once, before it is
// committed, so a cap is passed by what the lines in flight cost beyond their estimates, and by nothing else.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { completion, send, testUpstream } from '../fakes/upstream.ts'
import { line, TestService, type WireBatch } from '../service.ts'

const IN_FLIGHT = 4
/** The estimate of a line below, and what it really uses. */
const ESTIMATE = 13
const USED = 200
const USAGE = { prompt_tokens: USED - 5, completion_tokens: 5, total_tokens: USED }

/** Flushes are far apart: what is not counted before them would show. */
function config(base_url: string): string {
  return `
models:
  - id: m
    price: {input_per_mtok: 1, output_per_mtok: 1}
    upstreams: [{type: openai, base_url: "${base_url}", timeout: 5s, concurrency_max: ${IN_FLIGHT}}]
worker: {flush_interval: 10s, lease: 30s}`
}

interface WireUsage {
  succeeded: number
  total_tokens: number
}

async function used(service: TestService, query = ''): Promise<WireUsage> {
  return await service.json('GET', `/v1/usage/entities?${query}`)
}

const CASES = [
  { name: 'one entity', cap: { scope: 'project' }, entityOf: () => 'user:1' },
  { name: 'an entity for each line', cap: { scope: 'project' }, entityOf: (i: number) => `user:${i}` },
  {
    name: 'a cap on the entity alone',
    cap: { scope: 'entity', entity: 'user:1' },
    entityOf: () => 'user:1',
  },
  { name: 'a cap for a day', cap: { scope: 'project', window: 'day' }, entityOf: () => 'user:1' },
  { name: 'money', cap: { scope: 'project', metric: 'cost_usd' }, entityOf: () => 'user:1' },
]

for (const { name, cap, entityOf } of CASES) {
  test(`no cap is passed by more than the lines in flight: ${name}`, { timeout: 60_000 }, async () => {
    await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', USAGE)))
    await using service = await TestService.start(config(upstream.base_url))
    const lines = Array.from({ length: 400 }, (_, i) => ({
      ...line(`l${i}`, 'x', { max_tokens: 5 }),
      metadata: { entity: entityOf(i) },
    }))
    const file = await service.upload(lines.map((one) => JSON.stringify(one)).join('\n'))
    const amount = 4 * 400 * ESTIMATE
    const metric = 'metric' in cap ? cap.metric : 'tokens'
    await service.json('POST', '/v1/limits', {
      window: 'month',
      ...cap,
      metric,
      // As many nano-dollars as tokens, times a thousand.
      amount: metric === 'tokens' ? amount : amount / 1_000_000,
    })
    const batches: WireBatch[] = []
    for (let i = 0; i < 4; i++) batches.push(await service.create(file.id))
    for (const { id } of batches) await service.ended(id)
    const { total_tokens, succeeded } = await used(service)
    assert.ok(total_tokens >= amount - USED, `${total_tokens} of ${amount}`)
    assert.ok(
      total_tokens <= amount + IN_FLIGHT * (USED - ESTIMATE),
      `${succeeded} lines came to ${total_tokens} tokens under a cap of ${amount}`,
    )
    assert.equal(upstream.calls.length, succeeded)
  })
}

test('estimates that are too low hold nobody up where the cap is far', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', USAGE)))
  await using service = await TestService.start(config(upstream.base_url))
  await service.json('POST', '/v1/limits', {
    scope: 'project',
    metric: 'tokens',
    window: 'month',
    amount: 10 * 500 * USED,
  })
  const batch = await service.run(
    Array.from({ length: 500 }, (_, i) => line(`l${i}`, 'x', { max_tokens: 5 })),
  )
  assert.deepEqual(batch.request_counts, { total: 500, completed: 500, failed: 0 })
})
