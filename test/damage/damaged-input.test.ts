// An input that rots while its batch waits: the batch ends all the same, and says what happened.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readRow } from '../../src/store/rows.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireFile } from '../service.ts'
import { uploadForm } from '../support/api.ts'

const COUNT = 20

/** Flips a bit in the middle of a blob, as it lies in the store. */
async function damage(service: TestService, key: string): Promise<void> {
  const { blobs } = service.stores
  const pieces: Buffer[] = []
  for await (const piece of blobs.read(key)) pieces.push(Buffer.from(piece))
  const bytes = Buffer.concat(pieces)
  bytes[bytes.length >> 1]! ^= 1
  await blobs.put(key, [bytes])
}

async function damageIndex(service: TestService, file_id: string): Promise<string> {
  const file = await readRow(service.stores.store.read, 'files', { id: file_id })
  assert.ok(file?.index_blob)
  await damage(service, file.index_blob)
  return file.index_blob
}

/** As if the window had closed. */
async function expire(service: TestService, id: string): Promise<void> {
  await service.stores.store.write(async (tx) => {
    await tx.updateTable('batches').set({ expires_at: 1000 }).where('id', '=', id).execute()
    await tx.updateTable('chunks').set({ deadline: 1000 }).where('batch_id', '=', id).execute()
  })
}

const INPUT = Array.from({ length: COUNT }, (_, i) => JSON.stringify(line(`l${i}`))).join('\n')

/** A batch whose input is spoilt before it begins and whose window closes: it has failed, each of its lines once. */
async function expiredUnread(service: TestService, spoil: (file_id: string) => Promise<void>) {
  const file = await service.upload(INPUT)
  await service.worker.stop()
  const { id } = await service.create(file.id)
  await spoil(file.id)
  await expire(service, id)
  await service.restartWorker()
  const batch = await service.ended(id)
  assert.equal(batch.status, 'expired')
  assert.deepEqual(batch.request_counts, { total: COUNT, completed: 0, failed: COUNT })
  const errors = await service.lines(batch.error_file_id)
  assert.equal(new Set(errors.map((one) => one.id)).size, COUNT)
  return { batch, errors }
}

test('a batch whose input was damaged before it began ends with its window, every line in the error file', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const { batch, errors } = await expiredUnread(service, (file) => damage(service, `files/${file}/upload`))
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
  await damage(service, `files/${file.id}/upload`)
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

test('a damaged index is made again from the content: before a batch is created, and before it is planned', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(INPUT)
  const first = await damageIndex(service, file.id)
  const early = await service.create(file.id)
  assert.equal((await service.ended(early.id)).request_counts.completed, COUNT)
  await service.worker.stop()
  const late = await service.create(file.id)
  const second = await damageIndex(service, file.id)
  assert.notEqual(second, first)
  await service.restartWorker()
  const batch = await service.ended(late.id)
  assert.equal(batch.status, 'completed')
  assert.deepEqual(batch.request_counts, { total: COUNT, completed: COUNT, failed: 0 })
})

test('a batch whose input and index are both damaged ends with its window', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  await expiredUnread(service, async (file) => {
    await damage(service, `files/${file}/upload`)
    await damageIndex(service, file)
  })
  assert.equal(upstream.calls.length, 0)
})

test('an upload that is damaged before it was validated is refused, and says that it can be sent again', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:9/v1'), { worker: false })
  const { id } = await service.json<WireFile>('POST', '/v1/files', uploadForm(INPUT))
  await damage(service, `files/${id}/upload`)
  // As if it had been tried before.
  await service.stores.store.write((tx) => tx.updateTable('tasks').set({ attempts: 2 }).execute())
  await service.restartWorker()
  const file = await service.eventually(async () => {
    const shown = await service.json<WireFile>('GET', `/v1/files/${id}`)
    return shown.status === 'pending' ? undefined : shown
  })
  assert.equal(file.status, 'error')
  assert.match(file.status_details ?? '', /damaged.*Upload the file again/)
})
