import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  addToHours,
  addToTimeline,
  EMPTY_TIMELINE,
  emptyHours,
  type Finished,
  POINTS_MAX,
  type Timeline,
} from './batch-statistics.ts'

const some = (completed: number): Finished => {
  const none = { failed: 0, not_run: 0 }
  return { ...none, completed, prompt_tokens: 10 * completed, completion_tokens: 0, cost_nanos: completed }
}

const total = ({ points }: Timeline): number => points.reduce((sum, { completed }) => sum + completed, 0)

test('what finishes in one second is one point', () => {
  let timeline = addToTimeline(EMPTY_TIMELINE, some(1), 1_700)
  timeline = addToTimeline(timeline, some(2), 1_999)
  timeline = addToTimeline(timeline, some(3), 5_000)
  assert.deepEqual(
    timeline.points.map(({ at, completed }) => [at, completed]),
    [
      [1_000, 3],
      [5_000, 3],
    ],
  )
})

test('a day of commits stays within its points, loses nothing and stays in order', () => {
  let timeline = EMPTY_TIMELINE
  const commits = 86_400 / 10
  for (let i = 0; i < commits; i++) timeline = addToTimeline(timeline, some(1), i * 10_000)
  assert.ok(timeline.points.length <= POINTS_MAX)
  assert.ok(timeline.points.length > POINTS_MAX / 2 - 1)
  assert.equal(total(timeline), commits)
  assert.equal(timeline.interval_ms, 512_000)
  for (const [i, { at }] of timeline.points.entries()) {
    assert.equal(at % timeline.interval_ms, 0)
    if (i > 0) assert.ok(at > timeline.points[i - 1]!.at)
  }
})

test('what is taken back leaves the newest points, and no count is negative', () => {
  let timeline = addToTimeline(EMPTY_TIMELINE, some(5), 0)
  timeline = addToTimeline(timeline, some(2), 3_000)
  timeline = addToTimeline(timeline, some(-4), 9_000)
  assert.deepEqual(
    timeline.points.map(({ at, completed, prompt_tokens }) => [at, completed, prompt_tokens]),
    [[0, 3, 30]],
  )
  assert.deepEqual(addToTimeline(timeline, some(-9), 9_000).points, [])
})

test('a clock that is set back adds to the newest point', () => {
  let timeline = addToTimeline(EMPTY_TIMELINE, some(1), 50_000)
  timeline = addToTimeline(timeline, some(1), 20_000)
  assert.deepEqual(
    timeline.points.map(({ at, completed }) => [at, completed]),
    [[50_000, 2]],
  )
})

test('points count in the hours in which they begin, and those before are left out', () => {
  const hourMs = 3_600_000
  const hours = emptyHours(3, 10 * hourMs + 1)
  let timeline = addToTimeline(EMPTY_TIMELINE, some(1), 8 * hourMs - 1)
  for (const [lines, at] of [
    [2, 8 * hourMs],
    [3, 9 * hourMs - 1],
    [4, 10 * hourMs],
  ] as const)
    timeline = addToTimeline(timeline, some(lines), at)
  addToHours(hours, timeline)
  addToHours(hours, timeline)
  assert.deepEqual(
    hours.map(({ at, completed, prompt_tokens }) => [at / hourMs, completed, prompt_tokens]),
    [
      [8, 10, 100],
      [9, 0, 0],
      [10, 8, 80],
    ],
  )
})
