// Vercel's AI SDK: a batch of its OpenAI provider, from its start to its results.
import assert from 'node:assert/strict'
import { createOpenAI } from '@ai-sdk/openai'
import {
  experimental_getBatchResults as getBatchResults,
  experimental_getBatchStatus as getBatchStatus,
  experimental_startBatch as startBatch,
} from 'ai'

const provider = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY })
const requests = ['a', 'b', 'c'].map((id) => ({ id, type: 'text', model: 'sim-1', prompt: `Say ${id}.` }))
requests.push({ id: 'long', type: 'text', model: 'sim-1', prompt: 'Say it all.', maxOutputTokens: 1_000_000 })
const batch = await startBatch({ provider, requests })
let { status } = batch
while (status === 'pending') {
  await new Promise((resolve) => setTimeout(resolve, 100))
  status = (await getBatchStatus({ provider, batch })).status
}
assert.equal(status, 'completed')
const answered = []
for await (const result of getBatchResults({ provider, batch })) {
  const { id, status, text } = result
  if (id === 'long') {
    assert.match(JSON.stringify(result), /context window/)
    assert.notEqual(status, 'succeeded')
    answered.push(id)
    continue
  }
  assert.equal(status, 'succeeded')
  assert.ok(text)
  answered.push(id)
}
assert.deepEqual(answered.sort(), ['a', 'b', 'c', 'long'])
