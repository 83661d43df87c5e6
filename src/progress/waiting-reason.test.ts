import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ProgressCounters } from '../domain/progress.ts'
import type { LaneReport } from '../store/lane-reports.ts'
import type { ChunkGroup } from '../store/unsealed-chunks.ts'
import { type Surroundings, waitingReason } from './waiting-reason.ts'

const NOW = 1_700_000_000_000

const QUEUED: ProgressCounters & { id: string } = {
  id: 'b',
  status: 'queued',
  total: 100,
  completed: 0,
  failed: 0,
  in_progress_at: null,
  expires_at: NOW + 1e6,
  rate_sampled_at: null,
  rate_lines: 0,
  lines_per_s: null,
}

function trouble(more: Partial<LaneReport> = {}): LaneReport {
  return { model: 'm', state: 'unavailable', since: NOW, error: null, batches: {}, isOpen: true, ...more }
}

function chunks(more: Partial<ChunkGroup> = {}): ChunkGroup {
  return { batch_id: 'b', state: 'ready', parked_reason: null, model: 'm', chunks: 3, ...more }
}

function reason(groups: readonly ChunkGroup[], more: Partial<Surroundings> = {}, batch = QUEUED) {
  const idle = { now: NOW, has_worker: true, laneReports: [], leased: { chunks: 0, batches: 0 } }
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
  const laneReports = [trouble()]
  assert.equal(reason([chunks()], { has_worker: false, laneReports })?.code, 'no_worker')
})

test('trouble counts if it is that of a model which is left to run', () => {
  const laneReports = [
    trouble({ model: 'other', state: 'throttled', since: NOW - 9 }),
    trouble({ since: NOW - 5 }),
  ]
  assert.deepEqual(
    [reason([chunks()], { laneReports })?.model, reason([chunks()], { laneReports })?.since],
    ['m', NOW - 5],
  )
  assert.equal(reason([chunks({ model: 'fine' })], { laneReports }), null)
  assert.equal(
    reason([chunks({ model: null, state: 'leased' })], { laneReports })?.code,
    'upstream_throttled',
  )
})

test('a server that nobody reaches says why; what it says of lines is told to their own batch alone', () => {
  const told = (more: Partial<LaneReport>): string => {
    const found = reason([chunks()], { laneReports: [trouble(more)] })
    return `${found?.code}: ${found?.message}`
  }
  assert.equal(
    told({ error: 'no connection to the server (ECONNREFUSED)' }),
    'model_unavailable: No server of the model m answers: no connection to the server (ECONNREFUSED)',
  )
  assert.match(
    told({ state: 'failing', batches: { b: '500: no images' } }),
    /^lines_failing: .*500: no images$/,
  )
  assert.match(
    told({ state: 'failing', batches: { other: 'secret' } }),
    /^model_unavailable: .* other batches/,
  )
  assert.equal(
    told({ state: 'failing', batches: { other: 'secret' }, isOpen: false }),
    'undefined: undefined',
  )
  assert.match(
    told({ state: 'throttled', batches: { b: '429: slow down' } }),
    /asked to wait: 429: slow down$/,
  )
  assert.doesNotMatch(told({ state: 'throttled', batches: { other: 'secret' } }), /secret/)
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
  const laneReports = [trouble()]
  assert.equal(reason([chunks()], { laneReports }, { ...QUEUED, rate_sampled_at: NOW - 1_000 }), null)
  assert.equal(reason([chunks()], { laneReports }, { ...QUEUED, status: 'completed' }), null)
})
