// Anthropic's SDK for TypeScript: a message batch from its creation to its results, pages, a cancel, a deletion and errors.
import assert from 'node:assert/strict'
import { setTimeout } from 'node:timers/promises'
import Anthropic from '@anthropic-ai/sdk'

const baseURL = process.env.OFFPEAK_BASE_URL
const client = new Anthropic({ baseURL, apiKey: process.env.OFFPEAK_API_KEY })
const { batches } = client.messages
const params = { model: 'sim-1', max_tokens: 16, messages: [{ role: 'user', content: 'Say hello.' }] }

const create = (requests) =>
  batches.create({
    requests: Object.entries(requests).map(([custom_id, params]) => ({ custom_id, params })),
  })

async function ended(batch) {
  while (batch.processing_status !== 'ended') {
    await setTimeout(100)
    batch = await batches.retrieve(batch.id)
  }
  return batch
}

async function resultsOf(id) {
  const results = new Map()
  for await (const { custom_id, result } of await batches.results(id)) results.set(custom_id, result)
  return results
}

const done = await ended(await create({ said: params, failed: { ...params, model: 'nope' } }))
assert.deepEqual(done.request_counts, { processing: 0, succeeded: 1, errored: 1, canceled: 0, expired: 0 })
const results = await resultsOf(done.id)
const { message } = results.get('said')
assert.deepEqual(
  [message.content[0].type, message.stop_reason, message.usage.output_tokens],
  ['text', 'max_tokens', 16],
)
assert.equal(results.get('failed').error.error.type, 'not_found_error')

const many = Object.fromEntries(Array.from({ length: 3000 }, (_, i) => [`l${i}`, params]))
const cancelled = await ended(await batches.cancel((await create(many)).id))
assert.ok(cancelled.cancel_initiated_at && cancelled.request_counts.canceled > 0)
assert.equal((await resultsOf(cancelled.id)).size, 3000)

const ids = []
for await (const { id } of batches.list({ limit: 1 })) ids.push(id)
assert.equal(ids.indexOf(cancelled.id) + 1, ids.indexOf(done.id))

assert.equal((await batches.delete(done.id)).type, 'message_batch_deleted')
await assert.rejects(batches.retrieve(done.id), Anthropic.NotFoundError)
const wrong = new Anthropic({ baseURL, apiKey: 'none' })
await assert.rejects(wrong.messages.batches.list(), Anthropic.AuthenticationError)
await assert.rejects(create({}), (error) => {
  assert.ok(error instanceof Anthropic.BadRequestError)
  assert.equal(error.error.type, 'error')
  assert.equal(error.requestID, error.error.request_id)
  return true
})
