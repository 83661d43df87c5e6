import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isMoving, type ProgressCounters, progressOf, WAITING_CODES, type WaitingCode } from './progress.ts'

const NOW = 1_700_000_000_000
const HOUR_MS = 3_600_000

function batch(more: Partial<ProgressCounters> = {}): ProgressCounters {
  return {
    status: 'in_progress',
    total: 1000,
    completed: 300,
    failed: 100,
    in_progress_at: NOW - 40_000,
    created: NOW - 60_000,
    expires_at: NOW + HOUR_MS,
    rate_sampled_at: NOW - 1_000,
    rate_lines: 390,
    lines_per_s: 10,
    ...more,
  }
}

test('the end is expected when what is left is done at the rate of late', () => {
  assert.deepEqual(progressOf(batch(), NOW), {
    lines_per_s: 10,
    estimated_completion: NOW + 60_000,
    at_risk: false,
  })
})

test('before a rate was sampled, the time since the first line tells it', () => {
  const early = batch({ lines_per_s: null, completed: 40, failed: 0, in_progress_at: NOW - 1_000 })
  assert.equal(progressOf(early, NOW).lines_per_s, 40)
})

test('nothing is foretold of a batch of which no line has ended', () => {
  const fresh = batch({ rate_sampled_at: null, lines_per_s: null, completed: 0, failed: 0 })
  assert.deepEqual(progressOf(fresh, NOW), { lines_per_s: null, estimated_completion: null, at_risk: false })
})

test('a rate fades while nothing is counted, and never grows by it', () => {
  const rates = [3, 10, 100, 1_000].map((s) => {
    const silent = batch({ rate_sampled_at: NOW - s * 1000, rate_lines: 400, lines_per_s: 0.5 })
    return progressOf(silent, NOW).lines_per_s
  })
  assert.deepEqual(rates, [0.5, 0.1, 0.01, 0.001])
})

test('a batch is at risk when a little less speed would make it late', () => {
  const ending = (in_ms: number): boolean => progressOf(batch({ expires_at: NOW + in_ms }), NOW).at_risk
  assert.deepEqual([ending(76_000), ending(74_000), ending(59_000)], [false, true, true])
})

test('one that has not begun is judged by what all batches do together', () => {
  const queued = batch({ status: 'queued', rate_sampled_at: null, lines_per_s: null, in_progress_at: null })
  assert.equal(progressOf(queued, NOW, 1).at_risk, false)
  assert.equal(progressOf(queued, NOW, 0.1).at_risk, true)
  assert.equal(progressOf(queued, NOW, 0.1).estimated_completion, null)
})

test('a batch without a rate is at risk when it cannot run, or could have for a quarter of its window', () => {
  const unbegun = { rate_sampled_at: null, lines_per_s: null, completed: 0, failed: 0, created: NOW }
  const isAtRisk = (more: Partial<ProgressCounters>, ...rest: [number?, WaitingCode?]): boolean =>
    progressOf(batch({ ...unbegun, ...more }), NOW + (rest[0] ?? 0), null, [], rest[1]).at_risk
  assert.deepEqual(
    WAITING_CODES.filter((code) => !isAtRisk({}, 0, code)),
    ['engine_starting', 'not_before', 'outside_hours', 'live_traffic', 'queued', 'remote_batch'].sort(
      (a, b) => WAITING_CODES.indexOf(a as WaitingCode) - WAITING_CODES.indexOf(b as WaitingCode),
    ),
  )
  assert.equal(progressOf(batch(), NOW, null, [], 'model_unavailable').at_risk, false, 'its rate says more')
  assert.deepEqual([isAtRisk({}, 0.25 * HOUR_MS), isAtRisk({}, 0.26 * HOUR_MS)], [false, true])
  const later = { start_after: NOW + HOUR_MS / 2 }
  assert.deepEqual([isAtRisk(later, 0.6 * HOUR_MS), isAtRisk(later, 0.63 * HOUR_MS)], [false, true])
  assert.equal(isAtRisk({ paused_at: NOW }, 0.5 * HOUR_MS), false, 'it could not')
})

test('a completion that is estimated after the window is a risk, whatever happens in between', () => {
  for (const expires_in of [30_000, HOUR_MS, 24 * HOUR_MS])
    for (const silent of [0, 3_000, 10_000, 100_000, 3_000_000])
      for (const lines_per_s of [null, 0.001, 0.1, 10]) {
        const at = { expires_at: NOW + expires_in, rate_sampled_at: NOW - silent, lines_per_s }
        const one = batch({ ...at, in_progress_at: NOW - silent - 1 })
        const { estimated_completion, at_risk } = progressOf(one, NOW)
        if ((estimated_completion ?? 0) > one.expires_at) assert.ok(at_risk, JSON.stringify(one))
      }
})

test('what is done is at no risk', () => {
  const done = batch({ completed: 900, expires_at: NOW + 1 })
  assert.deepEqual(progressOf(done, NOW), { lines_per_s: 10, estimated_completion: NOW, at_risk: false })
})

test('a batch moves while lines of it have ended lately', () => {
  assert.deepEqual(
    [
      isMoving(batch(), NOW),
      isMoving(batch(), NOW + 10_000),
      isMoving(batch({ rate_sampled_at: null }), NOW),
    ],
    [true, false, false],
  )
})
