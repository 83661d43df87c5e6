// The promise, tried in thousands of orders: workers reserve, lines settle at no more than their worst case,
// workers die, batches are admitted, and at no moment is more spent than a cap allows, nor are the books off
// by a token. Every case runs the real ledger on a real database, in one transaction that is rolled back.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  addLimit,
  booksRuns,
  endedLine,
  leasedChunks,
  type TestChunk,
  testBooks,
} from '../../test/support/test-books.ts'
import { entityType } from '../domain/entity.ts'
import { ApiError } from '../domain/errors.ts'
import type { Model } from '../domain/model.ts'
import { closeSession } from '../store/leases.ts'
import type { Writer } from '../store/store.ts'
import { admit } from './admit.ts'
import { projectBatch } from './project-batch.ts'
import { reserve } from './reserve.ts'
import { settle } from './settle.ts'
import { tally } from './tally.ts'

const NOW = Date.UTC(2026, 10, 15, 12)
const ENTITIES = ['user:a', 'user:b', 'team:x', null] as const

interface ReservedLine {
  entity: string | null
  worst: number
}

interface WorkerChunk {
  chunk: TestChunk
  worker: string
  held: ReservedLine[]
}

/** What a cap counts, in tokens. */
interface Cap {
  amount: number
  counts: (entity: string | null) => string | null
}

const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant('reserve'), chunk: fc.nat(3), lines: lines() }) },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant('settle'), chunk: fc.nat(3), count: fc.nat(6), share: share() }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('die'), chunk: fc.nat(3) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('submit'), entity: fc.nat(3), tokens: fc.nat(120) }) },
)

function lines() {
  return fc.array(fc.record({ entity: fc.nat(3), worst: fc.integer({ min: 1, max: 40 }) }), { maxLength: 6 })
}

/** What a line uses of its worst case. */
function share() {
  return fc.double({ min: 0, max: 1, noNaN: true })
}

const RUNS = booksRuns()

test(`no order of ${RUNS} spends past a cap`, { timeout: 180_000 }, async () => {
  await using books = await testBooks()
  const caps = fc.record({ project: fc.nat(300), user: fc.nat(120), team: fc.nat(120) })
  const property = fc.asyncProperty(caps, fc.array(step, { maxLength: 24 }), async (amounts, steps) => {
    const rollback = new Error('rolled back')
    await books.store
      .write(async (tx) => {
        await run(tx, amounts, steps)
        throw rollback
      })
      .catch((error: unknown) => {
        if (error !== rollback) throw error
      })
  })
  await fc.assert(property, { numRuns: RUNS, seed: 20261121 })
})

type Step = typeof step extends fc.Arbitrary<infer T> ? T : never

async function run(
  tx: Writer,
  amounts: { project: number; user: number; team: number },
  steps: readonly Step[],
): Promise<void> {
  const chunks = await leasedChunks(tx, 4, NOW)
  const { project_id } = chunks[0]!
  await addLimit(tx, project_id, { amount: amounts.project })
  await addLimit(tx, project_id, {
    amount: amounts.user,
    scope: 'entity_type',
    subject: 'user',
    window: 'day',
  })
  await addLimit(tx, project_id, { amount: amounts.team, scope: 'entity', subject: 'team:x' })
  const caps: Cap[] = [
    { amount: amounts.project, counts: () => '' },
    { amount: amounts.user, counts: (entity) => (entity && entityType(entity) === 'user' ? entity : null) },
    { amount: amounts.team, counts: (entity) => (entity === 'team:x' ? entity : null) },
  ]
  const workers: WorkerChunk[] = chunks.map((chunk) => ({ chunk, worker: `wrk_${chunk.idx}`, held: [] }))
  for (const { chunk, worker } of workers) await lease(tx, chunk, worker)
  const spent = new Map<string | null, number>()

  for (const step of steps) {
    const at = workers['chunk' in step ? step.chunk : 0]!
    if ('lines' in step) {
      const asked = step.lines.map(({ entity, worst }) => ({ entity: ENTITIES[entity]!, worst }))
      await take(tx, at, asked)
    } else if ('share' in step) {
      for (const { entity, used } of await finish(tx, at, step.count, step.share))
        spent.set(entity, (spent.get(entity) ?? 0) + used)
    } else if ('tokens' in step) {
      await submit(tx, project_id, ENTITIES[step.entity]!, step.tokens, caps, spent)
    } else {
      await closeSession(tx, at.worker)
      at.held = []
      at.chunk.epoch++
      await lease(tx, at.chunk, at.worker)
    }
    check(caps, spent, workers)
  }
  await balance(tx, project_id, spent, workers)
}

async function lease(tx: Writer, chunk: TestChunk, worker_id: string): Promise<void> {
  await tx
    .updateTable('chunks')
    .set({ state: 'leased', worker_id, epoch: chunk.epoch })
    .where('batch_id', '=', chunk.batch_id)
    .where('idx', '=', chunk.idx)
    .execute()
}

async function take(tx: Writer, at: WorkerChunk, asked: readonly ReservedLine[]): Promise<void> {
  const lines = asked.map(({ entity, worst }, position) => ({
    position,
    entity,
    projected: { cost_nanos: worst * 10, tokens: worst },
    isSent: false,
    isReserved: false,
  }))
  const reservation = await reserve(tx, { claim: at.chunk, lines }, NOW)
  assert.ok(reservation, 'the lease holds')
  const { allowed, refused, waiting } = reservation
  assert.equal(allowed.length + refused.size + waiting.length, asked.length, 'each line has one answer')
  at.held.push(...allowed.map((position) => asked[position]!))
}

async function finish(tx: Writer, at: WorkerChunk, count: number, share: number) {
  const done = at.held.splice(0, count).map((line) => ({ ...line, used: Math.floor(line.worst * share) }))
  const ended = done.map(({ entity, worst, used }) =>
    endedLine({
      tokens: used,
      entity,
      finished_at: NOW,
      projected: { cost_nanos: worst * 10, tokens: worst },
    }),
  )
  await settle(tx, [{ ...at.chunk, tallies: tally(ended), last: false, hasReservations: true }], NOW)
  return done
}

/** A batch is admitted exactly when it fits beside the spent amount (no other batch has a projected cost here). */
async function submit(
  tx: Writer,
  project_id: string,
  entity: string | null,
  tokens: number,
  caps: readonly Cap[],
  spent: ReadonlyMap<string | null, number>,
): Promise<void> {
  const sums = {
    model: 'm',
    entity,
    lines: 1,
    input_tokens: tokens,
    output_tokens_max_given: 0,
    open_choices: 0,
  }
  const model: Model = {
    id: 'm',
    context_window: null,
    max_output_tokens: null,
    price: { input_picos: 10_000, output_picos: 0 },
    priced: true,
    supports: { structured_output: true, tools: true },
    endpoints: ['/v1/chat/completions'],
    created: 0,
  }
  const projection = projectBatch({ groups: [sums], unattributed: [] }, new Map([['m', model]]), {
    metadata: null,
    header_entity: null,
  })
  const fits = caps.every((cap) => {
    const spender = cap.counts(entity)
    return spender === null || tokens === 0 || spentUnder(cap, spender, spent) + tokens <= cap.amount
  })
  const apiError = await admit(tx, project_id, projection, 'en', NOW).then(
    () => null,
    (error: unknown) => error,
  )
  if (apiError !== null) assert.ok(apiError instanceof ApiError && apiError.code === 'usage_limit_exceeded')
  assert.equal(apiError === null, fits, `${tokens} tokens for ${entity}`)
}

function spentUnder(cap: Cap, spender: string, spent: ReadonlyMap<string | null, number>): number {
  let sum = 0
  for (const [entity, tokens] of spent) if (cap.counts(entity) === spender) sum += tokens
  return sum
}

function check(
  caps: readonly Cap[],
  spent: ReadonlyMap<string | null, number>,
  workers: readonly WorkerChunk[],
): void {
  for (const cap of caps) {
    for (const spender of new Set(ENTITIES.map((entity) => cap.counts(entity)))) {
      if (spender === null) continue
      const held = workers
        .flatMap((worker) => worker.held)
        .filter((line) => cap.counts(line.entity) === spender)
        .reduce((sum, line) => sum + line.worst, 0)
      assert.ok(spentUnder(cap, spender, spent) + held <= cap.amount, `${spender || 'the project'} is over`)
    }
  }
}

/** The books say what the model says. */
async function balance(
  tx: Writer,
  project_id: string,
  spent: ReadonlyMap<string | null, number>,
  workers: readonly WorkerChunk[],
): Promise<void> {
  const usage = await tx
    .selectFrom('usage_days')
    .select('total_tokens as tokens')
    .where('project_id', '=', project_id)
    .execute()
  const entries = await tokensOf(tx, 'ledger_entries', project_id)
  const holds = await tokensOf(tx, 'reservations', project_id)
  const all = [...spent.values()].reduce((sum, tokens) => sum + tokens, 0)
  const held = workers.flatMap((worker) => worker.held).reduce((sum, line) => sum + line.worst, 0)
  assert.equal(sum(usage), all)
  assert.equal(sum(entries), all)
  assert.equal(sum(holds), held)
}

async function tokensOf(tx: Writer, table: 'ledger_entries' | 'reservations', project_id: string) {
  return await tx.selectFrom(table).select('tokens').where('project_id', '=', project_id).execute()
}

function sum(rows: readonly { tokens: number }[]): number {
  return rows.reduce((total, row) => total + row.tokens, 0)
}
