import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BatchObject } from '../../wire/batch.ts'
import { FileObject } from '../../wire/file.ts'
import { readAnswer } from './read-answer.ts'

test('what an answer lacks is empty, and is not printed', () => {
  const said = { id: 'batch_1', object: 'batch', status: 'queued' }
  const batch = readAnswer(BatchObject, said, 'GET /v1/batches/batch_1')
  assert.deepEqual(
    [batch.name, batch.not_run, batch.output_file_id, batch.request_counts.total, batch.progress],
    ['', 0, null, 0, undefined],
  )
  assert.equal(JSON.stringify(batch), JSON.stringify(said))
})

test('fields, statuses and reasons of another version are kept', () => {
  const said = {
    id: 'batch_1',
    status: 'contemplating',
    request_counts: { total: 3, completed: 1, failed: 0, skipped: 1 },
    waiting_reason: { code: 'solar_eclipse', message: 'It is dark.', since: 1 },
    moon: { phase: 'full' },
  }
  const batch = readAnswer(BatchObject, said, 'GET /v1/batches/batch_1')
  assert.deepEqual(
    [batch.status, batch.waiting_reason?.message, batch.request_counts.total],
    ['contemplating', 'It is dark.', 3],
  )
  assert.equal(JSON.stringify(batch), JSON.stringify(said))
})

test('an answer without its ID, or with another type of value, names the place and the ID', () => {
  for (const [said, words] of [
    [{}, /the answer to GET \/x has an unexpected shape \(it has no id\)/],
    [[], /\(it is not object\)/],
    [{ id: 'file_1', bytes: 'many' }, /the answer to GET \/x for file_1 has .* \(\/bytes is not integer\)/],
    [{ id: 'file_1', errors: [{ line: 'one' }] }, /\/errors\/0\/line is not integer/],
  ] as const)
    assert.throws(() => readAnswer(FileObject, said, 'GET /x'), { message: words })
})
