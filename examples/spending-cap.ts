// A cap on what one user may spend in a month, and what a batch that does not fit under it is told. The batch is
// counted with its projected cost, so a smaller `max_tokens` makes it fit.
//
//   node examples/spending-cap.ts
import OpenAI from 'openai'
import { client, runBatch } from './run-batch.ts'

const entity = `user:${Date.now()}`
const limit = await client.post<{ id: string }>('/limits', {
  body: {
    scope: 'entity',
    entity,
    metric: 'cost_usd',
    amount: 0.001,
    window: 'month',
    description: 'Ask finance@example.com for more.',
  },
})

const lines = (max_tokens: number) =>
  [1, 2, 3].map((i) => ({
    custom_id: `line-${i}`,
    body: { model: 'sim-1', messages: [{ role: 'user', content: 'Tell me a story.' }], max_tokens },
  }))

try {
  await runBatch(lines(4_000), { entity })
  throw new Error('a batch above the cap was let in')
} catch (error) {
  if (!(error instanceof OpenAI.APIError) || error.code !== 'usage_limit_exceeded') throw error
  console.log(`refused: ${error.message}`)
}

const { batch } = await runBatch(lines(20), { entity })
const used = await client.get<{ cost_usd: number }>('/usage/entities', { query: { entity } })
console.log(`${batch.status}: ${entity} has spent ${used.cost_usd} USD of 0.001`)
await client.delete(`/limits/${limit.id}`)
