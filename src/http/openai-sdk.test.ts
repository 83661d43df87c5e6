// The OpenAI SDK as it comes, pointed at this server.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI, { toFile } from 'openai'
import { markProcessed } from '../store/files.ts'
import { ONE_LINE, testServer } from './test-server.ts'

test('the OpenAI SDK uploads, creates, lists, cancels, downloads and deletes', async () => {
  await using server = await testServer()
  const client = new OpenAI({ apiKey: server.key.key, baseURL: `${server.url}/v1`, maxRetries: 0 })

  const file = await client.files.create({
    file: await toFile(Buffer.from(ONE_LINE), 'in.jsonl'),
    purpose: 'batch',
  })
  assert.equal(String(file.status), 'pending')
  assert.equal(typeof file.created_at, 'number')
  await server.deps.store.write((tx) => markProcessed(tx, file.id, { line_count: 1, index_blob: 'x' }))

  const batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    metadata: { entity: 'user:1' },
  })
  assert.equal(batch.status, 'validating')
  assert.ok(batch._request_id?.startsWith('req_'))
  for (let i = 0; i < 4; i++)
    await client.batches.create({
      input_file_id: file.id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
    })

  const listed: string[] = []
  for await (const each of client.batches.list({ limit: 2 })) listed.push(each.id)
  assert.equal(new Set(listed).size, 5)
  assert.equal(listed.at(-1), batch.id)

  assert.equal((await client.batches.cancel(batch.id)).status, 'cancelling')
  assert.equal((await client.batches.retrieve(batch.id)).metadata?.entity, 'user:1')
  assert.equal(await (await client.files.content(file.id)).text(), ONE_LINE)
  const models: string[] = []
  for await (const model of client.models.list()) models.push(model.id)
  assert.deepEqual(models, ['sim-1', 'org/large', 'free'])
  assert.equal((await client.models.retrieve('org/large')).id, 'org/large')
  assert.deepEqual(await client.files.delete(file.id), { id: file.id, object: 'file', deleted: true })
  await assert.rejects(client.files.retrieve(file.id), (error) => {
    assert(error instanceof OpenAI.NotFoundError)
    assert.equal(error.code, 'file_not_found')
    assert.ok(error.requestID)
    return true
  })
})
