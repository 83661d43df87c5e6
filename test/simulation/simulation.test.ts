import assert from 'node:assert/strict'
import { test } from 'node:test'
import { violations } from './invariants.ts'
import type { SimulatedRun } from './run.ts'
import { simulateRun } from './world.ts'

/** Seeds that found mutants or defects, and quick ones; .ci/run has the first 75, day.long.test.ts one that takes long. */
const SEEDS = [1, 3, 4, 5, 26, 43, 146, 199, 326]

for (const seed of SEEDS) {
  test(`the run of seed ${seed} violates no invariant`, async () => {
    await simulateRun(seed, async (run) => {
      assert.deepEqual(await violations(run), [], run.trace.join('\n'))
    })
  })
}

test('the same seed gives the same run', async () => {
  const traces: string[] = []
  const keep = async ({ trace, server, checker }: SimulatedRun): Promise<void> => {
    traces.push(JSON.stringify([trace, [...server.answers], [...checker.finished.keys()]]))
  }
  await simulateRun(5, keep)
  await simulateRun(5, keep)
  assert.equal(traces[0], traces[1])
})
