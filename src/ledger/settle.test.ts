import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import {
  addLimit,
  endedLine,
  leasedChunks,
  spendOf,
  type TestBooks,
  type TestChunk,
  tally,
  testBooks,
  total,
} from '../../test/support/test-books.ts'
import { BATCH_STATUSES, isTerminal, statusesBefore } from '../domain/batch.ts'
import { dayOf } from '../domain/days.ts'
import { windowAt } from '../domain/limit.ts'
import { endBatch } from '../lifecycle/batch.ts'
import { amountsByEntity, amountsByKey, insertProjectedSpend } from '../store/ledger.ts'
import { updateLimit } from '../store/limits.ts'
import { readRow, updateRows } from '../store/rows.ts'
import type { Writer } from '../store/store.ts'
import { reserve } from './reserve.ts'
import { type Crossing, releaseProjectedSpend, settle } from './settle.ts'

/** The last moment of November and the first of December. */
const BEFORE = Date.UTC(2026, 11, 1) - 1
const AFTER = BEFORE + 1
const projected = spendOf(10)
const RULES = { file_retention_ms: () => 1_000 }

function finishedAt(...times: number[]) {
  return tally(times.map((at) => endedLine({ tokens: 10, entity: 'user:a', day: dayOf(at), projected })))
}

async function oneChunk(books: TestBooks): Promise<TestChunk> {
  const [chunk] = await books.store.write((tx) => leasedChunks(tx, 1, BEFORE))
  assert.ok(chunk)
  return chunk
}

function wanted(chunk: TestChunk, count: number) {
  const lines = Array.from({ length: count }, (_, position) => ({
    position,
    entity: 'user:a',
    model: 'm',
    projected,
    isSent: false,
    isReserved: false,
  }))
  return { claim: chunk, lines }
}

async function reservedTokens(tx: Writer): Promise<number[]> {
  return (await tx.selectFrom('reservations').select('tokens').execute()).map((row) => row.tokens)
}

describe('a batch that runs over the end of a month', () => {
  it('charges each line to its own day, though one commit records them', async () => {
    await using books = await testBooks()
    const chunk = await oneChunk(books)
    const { project_id } = chunk
    await books.store.write((tx) =>
      settle(
        tx,
        [{ ...chunk, tallies: finishedAt(BEFORE, BEFORE, AFTER), last: false, hasReservations: true }],
        AFTER + 500,
      ),
    )
    for (const [at, tokens] of [
      [BEFORE, 20],
      [AFTER, 10],
    ] as const) {
      for (const window of [windowAt('month', at), windowAt('day', at)]) {
        const byEntity = await amountsByEntity(books.store.read, 'usage_days', project_id, ['user:a'], window)
        assert.deepEqual(total(byEntity), spendOf(tokens, tokens / 10))
        assert.deepEqual(
          total(await amountsByKey(books.store.read, 'project_days', project_id, window)),
          spendOf(tokens, tokens / 10),
        )
      }
    }
  })

  it('has no charge left on a day whose charges are reversed', async () => {
    await using books = await testBooks()
    const chunk = await oneChunk(books)
    const charged = finishedAt(BEFORE, BEFORE)
    const reversed = charged.map((one) => ({
      ...one,
      ...{ succeeded: -one.succeeded, total_tokens: -one.total_tokens, cost_nanos: -one.cost_nanos },
    }))
    for (const tallies of [charged, reversed])
      await books.store.write((tx) =>
        settle(tx, [{ ...chunk, tallies, last: false, hasReservations: false }], AFTER),
      )
    const day = windowAt('day', BEFORE)
    const byEntity = await amountsByEntity(books.store.read, 'usage_days', chunk.project_id, ['user:a'], day)
    assert.equal(total(byEntity).tokens, 0)
    assert.equal(total(await amountsByKey(books.store.read, 'project_days', chunk.project_id, day)).tokens, 0)
  })

  it('has the whole cap again in the new month, less what is still reserved', async () => {
    await using books = await testBooks()
    const chunk = await oneChunk(books)
    await books.store.write(async (tx) => {
      await addLimit(tx, chunk.project_id, { amount: 50 })
      const first = await reserve(tx, wanted(chunk, 8), BEFORE)
      assert.equal(first?.allowed.length, 5)
      await settle(
        tx,
        [{ ...chunk, tallies: finishedAt(BEFORE, BEFORE, BEFORE), last: false, hasReservations: true }],
        BEFORE,
      )
      assert.deepEqual((await reserve(tx, wanted(chunk, 3), BEFORE))?.refused.size, 0)
      const next = await reserve(tx, wanted(chunk, 8), AFTER)
      assert.equal(next?.allowed.length, 3, 'two lines of November are still reserved')
      assert.equal(next?.waiting.length, 5)
    })
  })

  it('meets a threshold once in each month', async () => {
    await using books = await testBooks()
    const chunk = await oneChunk(books)
    const crossed = await books.store.write(async (tx) => {
      await addLimit(tx, chunk.project_id, { amount: 20, notify_at: '[0.5]', action: 'notify' })
      const of = (...times: number[]) =>
        settle(tx, [{ ...chunk, tallies: finishedAt(...times), last: false, hasReservations: true }], AFTER)
      return [await of(BEFORE), await of(BEFORE, AFTER), await of(AFTER), await of(AFTER)]
    })
    assert.deepEqual(
      crossed.map((some) => some.map(({ threshold, window }) => [threshold, window.start < AFTER])),
      [
        [[0.5, true]],
        [
          [1, true],
          [0.5, false],
        ],
        [[1, false]],
        [],
      ],
    )
  })
})

it('announces the thresholds of a cap that is changed anew', async () => {
  await using books = await testBooks()
  const chunk = await oneChunk(books)
  const { project_id } = chunk
  const crossed = await books.store.write(async (tx) => {
    const id = await addLimit(tx, project_id, { amount: 20, notify_at: '[0.5]', action: 'notify' })
    const settled = (): Promise<Crossing[]> =>
      settle(tx, [{ ...chunk, tallies: finishedAt(AFTER, AFTER), last: false, hasReservations: true }], AFTER)
    const first = await settled()
    await updateLimit(tx, project_id, id, { amount: 80 })
    await updateLimit(tx, project_id, id, { amount: 80, description: 'the same' })
    return [first, await settled(), await settled(), await settled()]
  })
  assert.deepEqual(
    crossed.map((some) => some.map(({ threshold, limit }) => [threshold, limit.amount])),
    [
      [
        [0.5, 20],
        [1, 20],
      ],
      [[0.5, 80]],
      [],
      [[1, 80]],
    ],
  )
})

describe('projected spend', () => {
  it('is reduced by the projection of settled lines, for the batch and for each entity', async () => {
    await using books = await testBooks()
    const { batch_id, project_id, key_id } = await oneChunk(books)
    await books.store.write(async (tx) => {
      const row = { batch_id, project_id, key_id, model: 'm' }
      await insertProjectedSpend(tx, [
        { ...row, entity: '', ...spendOf(50, 5) },
        { ...row, entity: 'user:a', ...spendOf(30, 3) },
      ])
      const tallies = [...finishedAt(AFTER), ...tally([endedLine({ tokens: 1, entity: null, projected })])]
      await releaseProjectedSpend(tx, batch_id, tallies)
      const byKey = await amountsByKey(tx, 'batch_projected_spend', project_id)
      assert.deepEqual({ ...byKey[0] }, { key_id, model: 'm', ...spendOf(30, 3) })
      const byEntity = await amountsByEntity(tx, 'batch_projected_spend', project_id, ['user:a'])
      assert.deepEqual({ ...byEntity[0] }, { entity: 'user:a', model: 'm', ...spendOf(20, 2) })
    })
  })

  for (const status of BATCH_STATUSES.filter(isTerminal))
    it(`is gone once the batch is ${status}, whatever its lines have left of it`, async () => {
      await using books = await testBooks()
      const { batch_id, project_id } = await oneChunk(books)
      await books.store.write(async (tx) => {
        const row = { batch_id, project_id, key_id: 'key_1', entity: 'user:a', model: 'm', ...spendOf(30) }
        await insertProjectedSpend(tx, [row])
        await updateRows(tx, 'batches', { id: batch_id })
          .set({ status: statusesBefore(status)[0]! })
          .execute()
        const open = (await readRow(tx, 'batches', { id: batch_id }))!
        const ended = await endBatch(tx, open, status as Parameters<typeof endBatch>[2], RULES, AFTER)
        assert.equal(ended?.status, status)
        const byEntity = await amountsByEntity(tx, 'batch_projected_spend', project_id, ['user:a'])
        assert.deepEqual([...byEntity], [])
      })
    })
})

describe('a reservation', () => {
  it('is reduced as lines settle, and deleted with the last line of the chunk', async () => {
    await using books = await testBooks()
    const chunk = await oneChunk(books)
    await books.store.write(async (tx) => {
      await addLimit(tx, chunk.project_id, { amount: 1000 })
      await reserve(tx, wanted(chunk, 3), AFTER)
      assert.deepEqual(await reservedTokens(tx), [30])
      await settle(tx, [{ ...chunk, tallies: finishedAt(AFTER), last: false, hasReservations: true }], AFTER)
      assert.deepEqual(await reservedTokens(tx), [20])
      await settle(tx, [{ ...chunk, tallies: finishedAt(AFTER), last: true, hasReservations: true }], AFTER)
      assert.deepEqual(await reservedTokens(tx), [])
    })
  })

  it('is not made where no limit matches, nor for a chunk whose lease was lost', async () => {
    await using books = await testBooks()
    const chunk = await oneChunk(books)
    await books.store.write(async (tx) => {
      await addLimit(tx, chunk.project_id, { amount: 1, scope: 'entity', subject: 'user:b' })
      await addLimit(tx, chunk.project_id, { amount: 1, action: 'notify' })
      const free = await reserve(tx, wanted(chunk, 3), AFTER)
      assert.deepEqual([free?.allowed.length, free?.isReserved], [3, false])
      await addLimit(tx, chunk.project_id, { amount: 1000 })
      assert.equal(await reserve(tx, wanted({ ...chunk, epoch: 2 }, 3), AFTER), null)
      assert.deepEqual(await reservedTokens(tx), [])
    })
  })

  it('covers real usage beyond the estimate: the excess counts, and nothing more is let through', async () => {
    await using books = await testBooks()
    const chunk = await oneChunk(books)
    await books.store.write(async (tx) => {
      await addLimit(tx, chunk.project_id, { amount: 20 })
      await reserve(tx, wanted(chunk, 1), AFTER)
      const real = endedLine({ tokens: 25, entity: 'user:a', day: dayOf(AFTER), projected })
      const [crossing] = await settle(
        tx,
        [{ ...chunk, tallies: tally([real]), last: false, hasReservations: true }],
        AFTER,
      )
      assert.deepEqual([crossing?.threshold, crossing?.spent], [1, 25])
      assert.equal((await reserve(tx, wanted(chunk, 2), AFTER))?.refused.size, 2)
    })
  })
})
