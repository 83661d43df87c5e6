// A commit never fails because of the size of its amounts: after months of amounts of any size the books can still be
// read, and compared with each other and with caps.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { addLimit, booksRuns, leasedChunks, tally, testBooks, total } from '../../test/support/test-books.ts'
import { dayOf } from '../domain/days.ts'
import { windowAt } from '../domain/limit.ts'
import { addTokens, COUNT_MAX, NO_TOKENS } from '../domain/money.ts'
import { addToBatch } from '../store/batches.ts'
import { commitChunk } from '../store/chunks.ts'
import { amountsByKey, sumsByDay } from '../store/ledger.ts'
import { readRow } from '../store/rows.ts'
import type { Writer } from '../store/store.ts'
import { listUsage, type UsageGroupRow } from '../store/usage.ts'
import { reserve } from './reserve.ts'
import { settle } from './settle.ts'

const NOW = Date.UTC(2026, 10, 15, 12)
const amount = fc.oneof(fc.nat(1000), fc.integer({ min: 2 ** 50, max: COUNT_MAX }), fc.constant(COUNT_MAX))
const line = fc.record({ tokens: amount, cost_nanos: amount, projected: amount, day: fc.nat(2) })
const commits = fc.array(fc.array(line, { minLength: 1, maxLength: 5 }), { minLength: 1, maxLength: 6 })

const atMost = (sum: bigint): number => Number(sum < BigInt(COUNT_MAX) ? sum : BigInt(COUNT_MAX))

test('lines of any size are entered, and every sum stops at the largest exact count', async () => {
  await using books = await testBooks()
  const property = fc.asyncProperty(commits, async (commits) => {
    const rollback = new Error('rolled back')
    const run = books.store.write(async (tx) => {
      await enter(tx, commits)
      throw rollback
    })
    await assert.rejects(run, (error) => error === rollback || assert.fail(String(error)))
  })
  await fc.assert(property, { numRuns: booksRuns() / 10, seed: 20261122 })
})

type Line = typeof line extends fc.Arbitrary<infer T> ? T : never

async function enter(tx: Writer, commits: readonly (readonly Line[])[]): Promise<void> {
  const [chunk] = await leasedChunks(tx, 1, NOW)
  assert.ok(chunk)
  const { project_id, batch_id, idx } = chunk
  await addLimit(tx, project_id, { amount: COUNT_MAX, metric: 'cost_usd' })
  for (const [commit_seq, lines] of commits.entries()) {
    const asked = lines.map(({ projected }, position) => ({
      position,
      entity: null,
      model: 'm',
      projected: { cost_nanos: projected, tokens: projected, requests: 1 },
      isSent: true,
      isReserved: false,
    }))
    assert.ok(await reserve(tx, { claim: chunk, lines: asked }, NOW))
    const ended = lines.map(({ tokens, cost_nanos, projected, day }) => ({
      part: 'output' as const,
      day: dayOf(NOW) + day,
      model: 'm',
      entity: null,
      usage: { prompt_tokens: tokens, completion_tokens: tokens, total_tokens: tokens },
      cost_nanos,
      projected: { cost_nanos: projected, tokens: projected, requests: 1 },
      isReserved: true,
      saved_nanos: null,
    }))
    const tallies = tally(ended)
    const sums = {
      completed: lines.length,
      failed: 0,
      cost_nanos: tallies.reduce((sum, { cost_nanos }) => Math.min(COUNT_MAX, sum + cost_nanos), 0),
      ...tallies.reduce(addTokens, NO_TOKENS),
    }
    assert.equal(await commitChunk(tx, { ...chunk, commit_seq }, sums, null, 1), 'accepted')
    await settle(tx, [{ ...chunk, tallies, last: false, hasReservations: true }], NOW)
    await addToBatch(tx, batch_id, { ...sums, at: NOW })
  }
  const all = commits.flat()
  const cost = atMost(all.reduce((sum, { cost_nanos }) => sum + BigInt(cost_nanos), 0n))
  const tokens = atMost(all.reduce((sum, { tokens }) => sum + BigInt(tokens), 0n))
  assert.equal((await readRow(tx, 'chunks', { batch_id, idx }))?.cost_nanos, cost)
  const batch = await readRow(tx, 'batches', { id: batch_id })
  assert.deepEqual([batch?.cost_nanos, batch?.prompt_tokens, batch?.total_tokens], [cost, tokens, tokens])
  const [spent] = await amountsByKey(tx, 'project_days', project_id, windowAt('month', NOW))
  const sums = total(spent ? [spent] : [])
  assert.deepEqual([sums.cost_nanos, sums.tokens], [cost, tokens])
  let usage: UsageGroupRow | undefined
  for await (const [group] of listUsage(tx, { project_id }, [])) usage = group ?? usage
  assert.deepEqual([usage?.prompt_tokens, usage?.total_tokens, usage?.cost_nanos], [tokens, tokens, cost])
  const settled = await sumsByDay(tx, 'ledger_entries', project_id, true)
  assert.deepEqual(settled, await sumsByDay(tx, 'usage_days', project_id, true))
  for (const [key, day] of await sumsByDay(tx, 'project_days', project_id, false))
    assert.deepEqual({ ...settled.get(key), lines: 0 }, day)
  const held = total(await amountsByKey(tx, 'reservations', project_id))
  assert.ok(held.cost_nanos >= 0 && held.tokens >= 0)
}
