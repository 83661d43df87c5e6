import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ChunkLine } from '../../jsonl/chunk-lines.ts'
import { OpenChunk } from '../../results/open-chunk.ts'
import type { BatchRow, ChunkRow } from '../../store/schema.ts'
import { FairQueue } from './fair-queue.ts'

/** A chunk with a project, an entity and a deadline; the rest does not matter here. */
function chunk(
  project_id: string,
  entity = '',
  deadline = 1_000,
  batch = `${project_id}${entity}`,
): OpenChunk {
  const claim = { project_id, entity, deadline, idx: 0 } as ChunkRow
  const lines = Array.from({ length: 1_000 }, () => ({ prompt: { start: 0, end: 0 } }) as ChunkLine)
  return new OpenChunk(claim, { id: batch, project_id } as BatchRow, lines, Buffer.alloc(0), [])
}

function range(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i)
}

/** The batch IDs of the next lines. */
function take(turns: FairQueue, count: number): string[] {
  return range(count).flatMap(() => turns.next()?.chunk.batch.id ?? [])
}

function counts(batches: readonly string[]): Record<string, number> {
  return Object.fromEntries([...Map.groupBy(batches, (id) => id)].map(([id, of]) => [id, of.length]))
}

test('projects are served round robin, however many lines each has', () => {
  const turns = new FairQueue()
  turns.add(chunk('giant'), range(1_000))
  turns.add(chunk('small'), range(3))
  assert.deepEqual(counts(take(turns, 6)), { giant: 3, small: 3 })
  assert.deepEqual(counts(take(turns, 10)), { giant: 10 })
})

test('entities of one project share the turns of their project', () => {
  const turns = new FairQueue()
  turns.add(chunk('a', 'user:1'), range(1_000))
  turns.add(chunk('a', 'user:2'), range(1_000))
  turns.add(chunk('b'), range(1_000))
  assert.deepEqual(counts(take(turns, 40)), { b: 20, 'auser:1': 10, 'auser:2': 10 })
})

test('of one entity the chunk with the earliest deadline goes first', () => {
  const turns = new FairQueue()
  turns.add(chunk('a', 'e', 2_000, 'later'), range(2))
  turns.add(chunk('a', 'e', 1_000, 'sooner'), range(2))
  assert.deepEqual(take(turns, 4), ['sooner', 'sooner', 'later', 'later'])
})

test('an at-risk batch gets three of four lines', () => {
  const turns = new FairQueue()
  for (const project of ['a', 'b', 'c']) turns.add(chunk(project), range(1_000))
  turns.add(chunk('late'), range(1_000))
  turns.prioritize(new Set(['late']))
  const shares = counts(take(turns, 160))
  assert.equal(shares.late, 130, JSON.stringify(shares))
  assert.deepEqual([shares.a, shares.b, shares.c], [10, 10, 10])
  turns.prioritize(new Set())
  assert.deepEqual(counts(take(turns, 40)), { a: 10, b: 10, c: 10, late: 10 })
})

test('removed lines are not handed out, and removing a chunk skips no other project', () => {
  const turns = new FairQueue()
  const leaving = chunk('a')
  turns.add(leaving, range(10))
  turns.add(chunk('b'), range(10))
  take(turns, 4)
  assert.deepEqual(turns.remove(leaving), range(10).slice(2))
  assert.equal(turns.waiting, 8)
  assert.deepEqual(counts(take(turns, 20)), { b: 8 })
  assert.equal(turns.next(), null)
})
