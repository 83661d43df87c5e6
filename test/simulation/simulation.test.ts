import assert from 'node:assert/strict'
import { test } from 'node:test'
import { violations } from './invariants.ts'
import { type SimulatedRun, simulateRun } from './world.ts'

/** The first ones, and some that have found planted bugs. */
const SEEDS = [1, 2, 3, 4, 5, 26, 43]

for (const seed of SEEDS) {
  test(`the night of seed ${seed} breaks no promise`, async () => {
    await simulateRun(seed, async (night) => {
      assert.deepEqual(await violations(night), [], night.trace.join('\n'))
    })
  })
}

test('the same seed brings the same night', async () => {
  const diaries: string[] = []
  const keep = async ({ trace, server, witness }: SimulatedRun): Promise<void> => {
    diaries.push(JSON.stringify([trace, [...server.answers], [...witness.finished.keys()]]))
  }
  await simulateRun(9, keep)
  await simulateRun(9, keep)
  assert.equal(diaries[0], diaries[1])
})
