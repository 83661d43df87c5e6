// Runs transactions side by side on PostgreSQL: workers reserve and settle, limits are created, raised, lowered and
// deleted, batches are admitted. The simulation runs each transaction alone; here locks decide the order.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { sql } from 'kysely'
import { emptyPostgres } from '../../test/fakes/empty-postgres.ts'
import { postgresServer, withoutPostgres } from '../../test/fakes/postgres-server.ts'
import { seededRandom } from '../../test/simulation/seeded-random.ts'
import {
  addLimit,
  endedLine,
  leasedChunks,
  spendOf,
  type TestChunk,
  tally,
} from '../../test/support/test-books.ts'
import { dayOf } from '../domain/days.ts'
import { ApiError } from '../domain/errors.ts'
import { accountsOf, LIMIT_WINDOWS } from '../domain/limit.ts'
import type { Spend } from '../domain/money.ts'
import { commitChunk, parkChunk } from '../store/chunks.ts'
import { deleteLimit, updateLimit } from '../store/limits.ts'
import { readRow } from '../store/rows.ts'
import type { Store } from '../store/store.ts'
import { admit } from './check-limits.ts'
import { reserve } from './reserve.ts'
import { settle } from './settle.ts'

const NOW = Date.UTC(2026, 10, 15, 12)
const WORKERS = 6
const ROUNDS = 12
const CAP = 5_000
const ENTITIES = ['user:a', 'user:b', null] as const

if (withoutPostgres) test('interleaved transactions', { skip: withoutPostgres }, () => {})
else {
  const server = await postgresServer()
  after(() => server[Symbol.asyncDispose]())

  test('no interleaving of reservations, commits and changes of limits passes a cap or loses a token', async () => {
    await using database = await emptyPostgres(server)
    const store = database.open()
    const chunks = await store.write((tx) => leasedChunks(tx, WORKERS, NOW))
    const { project_id } = chunks[0]!
    await store.write((tx) => addLimit(tx, project_id, { amount: CAP }))
    let isOver = false
    const watching = watch(store, project_id, () => isOver)
    const meddling = meddle(store, project_id, () => isOver)
    const spent = await Promise.all(chunks.map((chunk, seed) => work(store, chunk, seed)))
    isOver = true
    await Promise.all([watching, meddling])
    const total = spent.reduce((sum, tokens) => sum + tokens, 0)
    assert.ok(total > CAP / 2 && total <= CAP, `${total}`)
    const books = await readAmounts(store, project_id)
    assert.deepEqual([books.spent, books.entered, books.reserved], [total, total, 0])
  })
}

/** Runs a worker: reserves and commits for some rounds, then parks its chunk; returns its spend. */
async function work(store: Store, chunk: TestChunk, seed: number): Promise<number> {
  const random = seededRandom(seed)
  let spent = 0
  let pending: Promise<void> | null = null
  for (let round = 0; round < ROUNDS; round++) {
    const lines = Array.from({ length: random.int(1, 8) }, (_, position) => {
      const worst = random.int(1, 40)
      const need = spendOf(worst)
      return {
        position,
        entity: random.pick(ENTITIES),
        model: 'm',
        projected: need,
        isSent: false,
        isReserved: false,
      }
    })
    const reservation = await store.write((tx) => reserve(tx, { claim: chunk, lines }, NOW))
    assert.ok(reservation, 'the lease holds')
    await pending
    const done = reservation.allowed.map((position) => {
      const { entity, projected: need } = lines[position]!
      return { entity, need, used: random.int(0, need.tokens) }
    })
    spent += done.reduce((sum, { used }) => sum + used, 0)
    // The next reservation does not wait for it.
    pending = commit(store, chunk, done)
  }
  await pending
  const row = await readRow(store.read, 'chunks', { batch_id: chunk.batch_id, idx: chunk.idx })
  assert.ok(row)
  await store.write((tx) => parkChunk(tx, row, 0, 'usage_limit'))
  return spent
}

async function commit(
  store: Store,
  chunk: TestChunk,
  done: readonly { entity: string | null; need: Spend; used: number }[],
): Promise<void> {
  const tallies = tally(
    done.map(({ entity, need, used }) =>
      endedLine({ tokens: used, entity, day: dayOf(NOW), projected: need }),
    ),
  )
  await store.write(async (tx) => {
    const row = await readRow(tx, 'chunks', { batch_id: chunk.batch_id, idx: chunk.idx })
    assert.ok(row)
    const sums = { completed: done.length, failed: 0, cost_nanos: 0 }
    assert.equal(await commitChunk(tx, row, sums, null, 1), 'accepted')
    await settle(tx, [{ ...chunk, tallies, last: false, hasReservations: true }], NOW)
  })
}

/** Creates, changes and deletes other limits than the checked one, and admits batches. */
async function meddle(store: Store, project_id: string, isOver: () => boolean): Promise<void> {
  const random = seededRandom(99)
  const projection = {
    groups: [],
    key_id: 'key_1',
    payers: [{ entity: 'user:a', key_id: 'key_1', model: 'm' }],
    byAccount: new Map(
      accountsOf({ entity: 'user:a', key_id: 'key_1', model: 'm' }).map((account) => [account, spendOf(1)]),
    ),
    total: spendOf(1),
    lines: 1,
  }
  while (!isOver()) {
    const id = await store.write((tx) =>
      addLimit(tx, project_id, {
        amount: random.int(0, CAP),
        scope: 'entity_type',
        subject: 'user',
        window: random.pick(LIMIT_WINDOWS),
        action: random.pick(['block', 'notify'] as const),
      }),
    )
    for (let i = 0; i < 3; i++)
      await store.write((tx) => updateLimit(tx, project_id, id, { amount: random.int(0, CAP) }))
    await store
      .write((tx) => admit(tx, project_id, projection, 'en', NOW))
      .catch((error: unknown) => assert.ok(error instanceof ApiError, String(error)))
    assert.ok(await store.write((tx) => deleteLimit(tx, project_id, id)))
  }
}

async function watch(store: Store, project_id: string, isOver: () => boolean): Promise<void> {
  while (!isOver()) {
    const { spent, reserved } = await readAmounts(store, project_id)
    assert.ok(spent + reserved <= CAP, `${spent} spent and ${reserved} reserved under a cap of ${CAP}`)
    assert.ok(reserved >= 0)
  }
}

/** The amounts of tokens at one moment, read by one statement. */
async function readAmounts(store: Store, project_id: string) {
  const row = await store.read
    .selectNoFrom([
      sumOf('project_days', project_id).as('spent'),
      sumOf('ledger_entries', project_id).as('entered'),
      sumOf('reservations', project_id).as('reserved'),
    ])
    .executeTakeFirstOrThrow()
  return row
}

function sumOf(table: 'project_days' | 'ledger_entries' | 'reservations', project_id: string) {
  return sql<number>`(SELECT coalesce(sum(tokens), 0)::bigint FROM ${sql.table(table)} WHERE project_id = ${project_id})`
}
