import assert from 'node:assert/strict'
import { test } from 'node:test'
import { unsentRun } from '../../../test/support/unsent-run.ts'
import { PAUSED } from '../line-state.ts'
import type { Run } from '../run.ts'
import { FairQueue } from './fair-queue.ts'

function runOf(project_id: string, entity = '', deadline = 1_000, batch_id = `${project_id}${entity}`): Run {
  return unsentRun({ project_id, entity, deadline, batch_id, prompts: Array(1_000).fill('') })
}

function range(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i)
}

/** Adds the first lines of a run. */
function add(turns: FairQueue, run: Run, count: number): void {
  turns.add(run, range(count), count)
}

/** The batch IDs of the next lines. */
function take(turns: FairQueue, count: number): string[] {
  return range(count).flatMap(() => turns.next()?.run.batch.id ?? [])
}

function counts(batches: readonly string[]): Record<string, number> {
  return Object.fromEntries([...Map.groupBy(batches, (id) => id)].map(([id, of]) => [id, of.length]))
}

test('projects are served round robin, however many lines each has', () => {
  const turns = new FairQueue(new Set())
  add(turns, runOf('giant'), 1_000)
  add(turns, runOf('small'), 3)
  assert.deepEqual(counts(take(turns, 6)), { giant: 3, small: 3 })
  assert.deepEqual(counts(take(turns, 10)), { giant: 10 })
})

test('entities of one project share the turns of their project', () => {
  const turns = new FairQueue(new Set())
  add(turns, runOf('a', 'user:1'), 1_000)
  add(turns, runOf('a', 'user:2'), 1_000)
  add(turns, runOf('b'), 1_000)
  assert.deepEqual(counts(take(turns, 40)), { b: 20, 'auser:1': 10, 'auser:2': 10 })
})

test('of one entity the chunk with the earliest deadline goes first', () => {
  const turns = new FairQueue(new Set())
  add(turns, runOf('a', 'e', 2_000, 'later'), 2)
  add(turns, runOf('a', 'e', 1_000, 'sooner'), 2)
  assert.deepEqual(take(turns, 4), ['sooner', 'sooner', 'later', 'later'])
})

test('an at-risk batch gets three of four lines', () => {
  const atRisk = new Set<string>()
  const turns = new FairQueue(atRisk)
  for (const project of ['a', 'b', 'c']) add(turns, runOf(project), 1_000)
  add(turns, runOf('late'), 1_000)
  atRisk.add('late')
  const shares = counts(take(turns, 160))
  assert.equal(shares.late, 130, JSON.stringify(shares))
  assert.deepEqual([shares.a, shares.b, shares.c], [10, 10, 10])
  atRisk.clear()
  assert.deepEqual(counts(take(turns, 40)), { a: 10, b: 10, c: 10, late: 10 })
})

test('lines that are not unsent any more are not handed out, and skip no other project', () => {
  const turns = new FairQueue(new Set())
  const leaving = runOf('a')
  add(turns, leaving, 10)
  add(turns, runOf('b'), 10)
  take(turns, 4)
  for (const position of range(10)) leaving.move(position, PAUSED, 'its batch is paused')
  assert.deepEqual(counts(take(turns, 20)), { b: 8 })
  assert.equal(turns.next(), null)
  assert.equal(turns.entries, 0)
})

test('lines that leave the queue and return do not pile up', () => {
  const turns = new FairQueue(new Set())
  const run = runOf('a')
  for (let times = 0; times < 50; times++) add(turns, run, 1_000)
  assert.ok(turns.entries <= 4_000, `${turns.entries} entries of 1,000 lines`)
})
