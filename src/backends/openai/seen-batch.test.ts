import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createdMs, seenBatch } from './seen-batch.ts'

const same = (text: string): string => text
const seen = (batch: object) => seenBatch({ id: 'b', ...batch }, same)

test('a batch is read in the words of several batch APIs', () => {
  const ends = (status: string): string | null | undefined => seen({ status })?.ended
  assert.deepEqual(['completed', 'COMPLETED', 'SUCCESS', 'Canceled', 'TIMEOUT_EXCEEDED', 'error'].map(ends), [
    'completed',
    'completed',
    'completed',
    'cancelled',
    'expired',
    'failed',
  ])
  for (const status of ['validating', 'IN_PROGRESS', 'queued', 'finalizing', 'cancelling', 'RUNNING'])
    assert.deepEqual([seen({ status })?.ended, seen({ status })?.isKnown], [null, true], status)
  assert.equal(seenBatch({ job: { id: 'wrapped', status: 'VALIDATING' } }, same)?.id, 'wrapped')
  assert.equal(seenBatch({ status: 'completed' }, same), null)
})

test('a status that is not known is an end once every request has ended and a file is there', () => {
  const done = { status: 'finito', request_counts: { total: 3, completed: 2, failed: 1 } }
  assert.deepEqual([seen(done)?.ended, seen(done)?.isKnown], [null, false])
  assert.equal(seen({ ...done, output_file_id: 'f' })?.ended, 'completed')
  const half = { ...done, output_file_id: 'f', request_counts: { total: 3, completed: 1, failed: 0 } }
  assert.equal(seen(half)?.ended, null)
})

test('a batch that failed for lack of room may be sent again, and its words hold no secret', () => {
  const errors = { data: [{ code: 'token_limit_exceeded', message: 'key sk-1 has no room' }] }
  const failed = seenBatch({ id: 'b', status: 'failed', errors }, (text) => text.replace('sk-1', '…'))
  assert.deepEqual([failed?.isThrottled, failed?.detail], [true, 'token_limit_exceeded: key … has no room'])
  assert.equal(seen({ status: 'failed', errors: 'wrong' })?.isThrottled, false)
})

test('times of creation are seconds, milliseconds or text', () => {
  const at = 1_790_000_000_000
  for (const created_at of [at / 1000, at, String(at / 1000), new Date(at).toISOString()])
    assert.equal(createdMs({ created_at }), at)
  assert.equal(createdMs({}), null)
  assert.equal(createdMs({ created_at: 'yesterday' }), null)
})

test('a time of creation that nobody can mean is none: the batch may be the one that is looked for', () => {
  for (const created_at of [1e155, 2 ** 64, -1, 0, 1e300, '9'.repeat(400), 1e15])
    assert.equal(createdMs({ created_at }), null)
})

test('an ID that nobody can mean is a failure that says so, and is not stored', () => {
  const id = 'b'.repeat(512)
  assert.equal(seen({ id, output_file_id: id })?.output_file_id, id)
  assert.throws(() => seen({ id: `${id}b` }), /an ID of more than 512 characters/)
  for (const key of ['output_file_id', 'error_file_id'] as const)
    assert.equal(seen({ id, status: 'completed', [key]: `${id}b` })?.[key], null, 'its lines have no result')
})

test('a status that is the name of a property of every object is an unknown one', () => {
  for (const status of ['constructor', '__proto__', 'valueof']) {
    assert.deepEqual([seen({ status })?.ended, seen({ status })?.isKnown], [null, false])
  }
})

test('counts and costs that nobody can mean are left out of the report, and so is whatever else is said', () => {
  const report = (batch: object): unknown => JSON.parse(seen(batch)!.report)
  const request_counts = { total: 3, completed: 2, failed: 1 }
  assert.deepEqual(
    report({ status: 'completed', request_counts, cost_usd: 0.25, usage: { a: 'x'.repeat(1e6) } }),
    {
      status: 'completed',
      request_counts,
      cost_usd: 0.25,
    },
  )
  for (const absurd of [1e155, 2 ** 64, -1, 'many', null, [1]]) {
    const counts = { total: absurd, completed: absurd, failed: absurd, more: 'x'.repeat(1e6) }
    const said = report({ status: 'x'.repeat(1e6), request_counts: counts, cost_usd: absurd })
    assert.deepEqual(said, { status: 'x'.repeat(40), request_counts: {} })
  }
})
