// A day and a half with opening hours and a change of daylight saving: batches that are paused, reloads and crashes around
// each time when servers open or close. And a long run.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { violations } from './invariants.ts'
import { Tally } from './tally.ts'
import { simulateDay, simulateRun } from './world.ts'

test('a day with hours, a change of daylight saving, pauses and reloads violates no invariant', async () => {
  const seen = new Tally()
  for (const seed of [1, 2, 7])
    await simulateDay(seed, async (run) => {
      assert.deepEqual(await violations(run), [], run.trace.join('\n'))
      seen.add(run.tally)
    })
  for (const what of [
    'hours: sent after 1 closures',
    'hours: sent after 2 closures',
    'hours: sent after 3 closures',
    'world: batch paused or resumed',
    'world: reload',
  ])
    assert.ok(seen.of(what) > 0, what)
})

test('the run of seed 444, which has found a defect, violates no invariant', async () => {
  await simulateRun(444, async (run) => {
    assert.deepEqual(await violations(run), [], run.trace.join('\n'))
  })
})
