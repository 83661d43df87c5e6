import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  addToTimeline,
  EMPTY_TIMELINE,
  type Finished,
  POINTS_MAX,
  type Timeline,
} from './batch-statistics.ts'

const some = (completed: number): Finished => {
  return { completed, failed: 0, prompt_tokens: 10 * completed, completion_tokens: 0, cost_nanos: completed }
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
