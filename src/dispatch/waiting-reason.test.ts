import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { PacedBatch } from '../domain/progress.ts'
import type { ChunkGroup } from '../store/waiting.ts'
import { type Surroundings, waitingReason } from './waiting-reason.ts'

const NOW = 1_700_000_000_000

const QUEUED: PacedBatch = {
  status: 'queued',
  total: 100,
  completed: 0,
  failed: 0,
  in_progress_at: null,
  expires_at: NOW + 1e6,
  rate_at: null,
  rate_done: 0,
  lines_per_s: null,
}

function chunks(more: Partial<ChunkGroup> = {}): ChunkGroup {
  return { batch_id: 'b', state: 'ready', parked_reason: null, model: 'm', chunks: 3, ...more }
}

function reason(groups: readonly ChunkGroup[], more: Partial<Surroundings> = {}, batch = QUEUED) {
  const idle = { now: NOW, has_worker: true, troubles: [], leased: { chunks: 0, batches: 0 } }
  return waitingReason(batch, groups, { ...idle, ...more })
}

test('a queued batch says behind how much it waits', () => {
  const queued = reason([chunks()], { leased: { chunks: 5, batches: 2 } })
  assert.equal(queued?.code, 'queued')
  assert.equal(queued?.message, 'Queued behind 5 chunks of 2 other batches under way.')
  assert.match(
    reason([chunks()], { leased: { chunks: 1, batches: 1 } })?.message ?? '',
    /one chunk of one other/,
  )
})

test('without a worker nothing moves, whatever else is amiss', () => {
  const troubles = [{ model: 'm', state: 'unavailable' as const, since: NOW }]
  assert.equal(reason([chunks()], { has_worker: false, troubles })?.code, 'no_worker')
})

test('trouble counts if it is that of a model which is left to run', () => {
  const troubles = [
    { model: 'other', state: 'throttled' as const, since: NOW - 9 },
    { model: 'm', state: 'unavailable' as const, since: NOW - 5 },
  ]
  assert.deepEqual(
    [reason([chunks()], { troubles })?.model, reason([chunks()], { troubles })?.since],
    ['m', NOW - 5],
  )
  assert.equal(reason([chunks({ model: 'fine' })], { troubles }), null)
  assert.equal(reason([chunks({ model: null, state: 'leased' })], { troubles })?.code, 'upstream_throttled')
})

test('chunks that rest say why, unless others of the batch run', () => {
  const resting = chunks({ state: 'parked', parked_reason: 'usage_limit' })
  assert.equal(reason([resting])?.code, 'usage_limit')
  const told = (parked_reason: string): string | undefined => {
    const found = reason([chunks({ state: 'parked', parked_reason })])
    assert.equal(found?.code, 'parked')
    return found?.message
  }
  assert.match(String(told('input_unreadable')), /input cannot be read/)
  assert.match(String(told('stores_failing')), /did not answer/)
  assert.match(String(told('model_unavailable')), /model was away/)
  assert.equal(reason([resting, chunks({ state: 'leased' })]), null)
})

test('a batch of which lines end, or that has ended, waits for nothing', () => {
  const troubles = [{ model: 'm', state: 'unavailable' as const, since: NOW }]
  assert.equal(reason([chunks()], { troubles }, { ...QUEUED, rate_at: NOW - 1_000 }), null)
  assert.equal(reason([chunks()], { troubles }, { ...QUEUED, status: 'completed' }), null)
})
