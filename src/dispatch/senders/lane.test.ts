import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testClock } from '../../../test/fakes/clock.ts'
import { unsentRun } from '../../../test/support/unsent-run.ts'
import { Lane } from './lane.ts'
import { Route } from './routes.ts'

test('lines that share a prefix are wanted in larger numbers, to be sent in a row', () => {
  const laneOf = (prompts: readonly string[]): Lane => {
    const lane = new Lane('m', new Route([]), testClock(), { schedule() {} })
    lane.add(unsentRun({ prompts }), [...prompts.keys()])
    lane.unsent = 3_000
    return lane
  }
  assert.equal(laneOf(Array.from({ length: 50 }, (_, i) => `${'a handbook. '.repeat(50)}${i}`)).isLow, true)
  assert.equal(laneOf(Array.from({ length: 50 }, (_, i) => `${i} is a question`)).isLow, false)
})
