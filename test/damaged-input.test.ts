// An input that rots while its batch waits: the batch ends all the same, and says what happened.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { echo, testUpstream } from './fakes/upstream.ts'
import { configFor, line, TestService } from './service.ts'

const COUNT = 20

/** Flips a bit in the middle of the uploaded content, as it lies in the store. */
async function damage(service: TestService, file_id: string): Promise<void> {
  const { blobs } = service.stores
  const key = `files/${file_id}/upload`
  const pieces: Buffer[] = []
  for await (const piece of blobs.read(key)) pieces.push(Buffer.from(piece))
  const bytes = Buffer.concat(pieces)
  bytes[bytes.length >> 1]! ^= 1
  await blobs.put(key, [bytes])
}

/** As if the window had closed. */
async function expire(service: TestService, id: string): Promise<void> {
  await service.stores.store.write(async (tx) => {
    await tx.updateTable('batches').set({ expires_at: 1000 }).where('id', '=', id).execute()
    await tx.updateTable('chunks').set({ deadline: 1000 }).where('batch_id', '=', id).execute()
  })
}

const INPUT = Array.from({ length: COUNT }, (_, i) => JSON.stringify(line(`l${i}`))).join('\n')

test('a batch whose input was damaged before it began ends with its window, every line in the error file', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(INPUT)
  await service.worker.stop()
  const { id } = await service.create(file.id)
  await damage(service, file.id)
  await expire(service, id)
  await service.restartWorker()
  const batch = await service.ended(id)
  assert.equal(batch.status, 'expired')
  assert.deepEqual(batch.request_counts, { total: COUNT, completed: 0, failed: COUNT })
  const errors = await service.lines(batch.error_file_id)
  assert.equal(new Set(errors.map((one) => one.id)).size, COUNT)
  assert.ok(errors.every((one) => one.custom_id === null && one.error?.code === 'internal_error'))
  assert.equal(batch.cost_usd, 0)
  assert.equal(upstream.calls.length, 0)
})

test('what was finished before the input was damaged is kept', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.index < 5) echo(call)
  })
  await using service = await TestService.start(
    configFor(upstream.base_url).replace('lease: 2s', 'lease: 2s, drain: 0ms'),
  )
  const file = await service.upload(INPUT)
  const { id } = await service.create(file.id)
  await upstream.arrived(COUNT)
  await service.worker.stop()
  const finished = (await service.get(id)).request_counts.completed
  await damage(service, file.id)
  await expire(service, id)
  await service.restartWorker()
  const batch = await service.ended(id)
  assert.ok(finished > 0)
  assert.deepEqual(batch.request_counts, { total: COUNT, completed: finished, failed: COUNT - finished })
  const answers = await service.lines(batch.output_file_id)
  assert.equal(answers.length, finished)
  assert.ok(answers.every((one) => one.custom_id.startsWith('l')))
  const errors = await service.lines(batch.error_file_id)
  assert.ok(errors.every((one) => one.custom_id === null && one.error?.code === 'internal_error'))
  assert.equal(new Set([...answers, ...errors].map((one) => one.id)).size, COUNT)
})
