import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ProgressCounters } from '../domain/progress.ts'
import type { ChunkGroup } from '../store/chunks.ts'
import type { LaneReport } from '../store/workers.ts'
import { type Surroundings, waitingReason } from './waiting-reason.ts'

const NOW = 1_700_000_000_000

const QUEUED: ProgressCounters & { id: string; models: string | null } = {
  id: 'b',
  models: null,
  status: 'queued',
  total: 100,
  completed: 0,
  failed: 0,
  in_progress_at: null,
  created: NOW,
  expires_at: NOW + 1e6,
  rate_sampled_at: null,
  rate_lines: 0,
  lines_per_s: null,
}

function report(more: Partial<LaneReport> = {}): LaneReport {
  return {
    model: 'm',
    state: 'unavailable',
    since: NOW,
    reason: null,
    batches: {},
    last_error: null,
    isOpen: true,
    ...more,
  }
}

function chunks(more: Partial<ChunkGroup> = {}): ChunkGroup {
  return { batch_id: 'b', state: 'ready', parked_reason: null, model: 'm', ...more }
}

function reason(groups: readonly ChunkGroup[], more: Partial<Surroundings> = {}, batch = QUEUED) {
  const idle = {
    now: NOW,
    hasWorker: true,
    storesFail: false,
    isStuck: false,
    laneReports: [],
    leased: { chunks: 0, batches: 0 },
    models: new Map(),
  }
  return waitingReason(batch, groups, { ...idle, ...more })
}

test('a queued batch says how much is under way before it', () => {
  const queued = reason([chunks()], { leased: { chunks: 5, batches: 2 } })
  assert.equal(queued?.code, 'queued')
  assert.equal(queued?.message, 'Queued behind 5 chunks of 2 other batches under way.')
  assert.match(
    reason([chunks()], { leased: { chunks: 1, batches: 1 } })?.message ?? '',
    /1 chunk of 1 other batch/,
  )
})

test('without a worker the reason is no_worker, whatever else is wrong', () => {
  const laneReports = [report()]
  assert.equal(reason([chunks()], { hasWorker: false, laneReports })?.code, 'no_worker')
})

test('failing storage is the reason before all others, also of lines that a worker has', () => {
  const laneReports = [report()]
  for (const where of [{ storesFail: true }, { isStuck: true }]) {
    const found = reason([chunks()], { hasWorker: false, laneReports, ...where })
    assert.equal(found?.code, 'storage_failing')
    assert.match(found?.message ?? '', /^The storage of the service is full or fails/)
    const running = { ...QUEUED, status: 'in_progress', rate_sampled_at: NOW - 2_900 } as const
    assert.equal(reason([chunks({ state: 'leased' })], where, running), null, 'lines end')
    const still = { ...running, rate_sampled_at: NOW - 3_000 }
    assert.equal(reason([chunks({ state: 'leased' })], where, still)?.code, 'storage_failing')
  }
})

test('a report counts if unfinished chunks need its model', () => {
  const laneReports = [
    report({ model: 'other', state: 'throttled', since: NOW - 9 }),
    report({ since: NOW - 5 }),
  ]
  assert.deepEqual(
    [reason([chunks()], { laneReports })?.model, reason([chunks()], { laneReports })?.since],
    ['m', NOW - 5],
  )
  assert.equal(reason([chunks({ model: 'fine' })], { laneReports })?.code, 'queued')
  assert.equal(
    reason([chunks({ model: null, state: 'leased' })], { laneReports }, { ...QUEUED, models: '["other"]' })
      ?.code,
    'upstream_throttled',
  )
})

test('a batch of more models than are listed waits for those whose servers failed on its lines', () => {
  const several = chunks({ model: null, state: 'leased' })
  const laneReports = [
    report({ model: 'other', state: 'throttled', batches: { c: '429' } }),
    report({ model: 'own', state: 'throttled', batches: { b: '429' } }),
  ]
  assert.equal(reason([several], { laneReports })?.model, 'own')
  assert.equal(reason([chunks({ model: 'fine' })], { laneReports })?.code, 'queued')
})

test('chunks of several models wait for the models of their batch, and chunks at a batch API for that', () => {
  const laneReports = [report({ model: 'other' })]
  const several = chunks({ model: null })
  const batch = { ...QUEUED, models: '["m","n"]' }
  assert.equal(reason([several], { laneReports }, batch)?.code, 'queued')
  assert.equal(reason([several], { laneReports: [report({ model: 'n' })] }, batch)?.model, 'n')
  const remote = { state: 'parked', parked_reason: 'remote_batch' } as const
  for (const model of [null, 'm'])
    assert.equal(
      reason([chunks({ ...remote, model })], { laneReports: [...laneReports, report()] }, batch)?.code,
      'remote_batch',
    )
  assert.equal(
    reason(
      [chunks({ ...remote, model: 'm' }), chunks({ model: 'n' })],
      { laneReports: [report({ model: 'n' })] },
      batch,
    )?.model,
    'n',
  )
})

test('an unreachable server is reported with its error; errors of lines are shown to their own batch only', () => {
  const shown = (more: Partial<LaneReport>): string => {
    const found = reason([chunks()], { laneReports: [report(more)] })
    return `${found?.code}: ${found?.message}`
  }
  assert.equal(
    shown({
      reason: 'no connection to the server (ECONNREFUSED)',
      last_error: 'connect ECONNREFUSED 10.0.0.1:8000',
    }),
    'model_unavailable: No server of the model m answers: no connection to the server (ECONNREFUSED)',
  )
  const gone = { reason: '503', last_error: '503: secret' }
  assert.match(shown({ ...gone, batches: { other: '503: secret' } }), /^model_unavailable: .* answers: 503$/)
  assert.match(
    shown({ ...gone, batches: { b: '503: no room' } }),
    /^model_unavailable: .* answers: 503: no room$/,
  )
  assert.match(shown({ ...gone, batches: { b: '500: no images' } }), /answers: 503$/, 'an earlier error')
  assert.match(
    shown({ state: 'failing', batches: { b: '500: no images' } }),
    /^lines_failing: .*500: no images$/,
  )
  assert.match(
    shown({ state: 'failing', batches: { other: 'secret' } }),
    /^model_unavailable: .* other batches/,
  )
  assert.equal(
    shown({ state: 'failing', batches: { other: 'secret' }, isOpen: false }),
    'queued: A worker claims it next.',
  )
  assert.match(
    shown({ state: 'throttled', batches: { b: '429: slow down' } }),
    /asked to wait: 429: slow down$/,
  )
  assert.match(shown({ state: 'live_traffic' }), /^live_traffic: Other requests take all of the server/)
  assert.doesNotMatch(shown({ state: 'throttled', batches: { other: 'secret' } }), /secret/)
})

test('parked chunks say why, unless other chunks of the batch run', () => {
  const parked = chunks({ state: 'parked', parked_reason: 'usage_limit' })
  assert.equal(reason([parked])?.code, 'usage_limit')
  const told = (parked_reason: string): string | undefined => {
    const found = reason([chunks({ state: 'parked', parked_reason })])
    assert.equal(found?.code, parked_reason === 'stores_failing' ? 'storage_failing' : 'parked')
    return found?.message
  }
  assert.match(String(told('input_unreadable')), /input cannot be read/)
  assert.match(String(told('stores_failing')), /did not answer/)
  assert.match(String(told('model_unavailable')), /model was unavailable/)
  const running = { ...QUEUED, status: 'in_progress' as const }
  assert.equal(reason([parked, chunks({ state: 'leased' })], {}, running), null)
})

test('a batch that is claimed or next in line is queued until its first line is sent', () => {
  assert.match(reason([chunks({ state: 'leased' })])?.message ?? '', /claimed it; its first line/)
  assert.match(reason([chunks()])?.message ?? '', /claims it next/)
  const running = { ...QUEUED, status: 'in_progress' as const }
  assert.equal(reason([chunks({ state: 'leased' })], {}, running), null)
  assert.equal(reason([chunks()], {}, running), null)
})

test('a batch with recently finished lines, or that has ended, is not waiting', () => {
  const laneReports = [report()]
  assert.equal(reason([chunks()], { laneReports }, { ...QUEUED, rate_sampled_at: NOW - 1_000 }), null)
  assert.equal(reason([chunks()], { laneReports }, { ...QUEUED, status: 'completed' }), null)
})
