// Holds caps in thousands of random orders: workers reserve, lines settle at no more than their worst case, workers
// crash, batches are admitted, and the clock crosses the ends of days and months in both directions. At no moment may a
// window's spend exceed its cap, or the books be off by a token. Every case runs the real ledger on a real database, in
// one transaction that is rolled back.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  addLimit,
  booksRuns,
  endedLine,
  leasedChunks,
  spendOf,
  type TestChunk,
  tally,
  testBooks,
} from '../../test/support/test-books.ts'
import { dayOf } from '../domain/days.ts'
import { entityType } from '../domain/entity.ts'
import { ApiError } from '../domain/errors.ts'
import { type LimitWindow, type Payer, windowAt } from '../domain/limit.ts'
import type { Model } from '../domain/model.ts'
import { emptySums } from '../jsonl/projection.ts'
import type { LimitRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { closeSession } from '../store/workers.ts'
import { admit, projectBatch } from './check-limits.ts'
import { reserve } from './reserve.ts'
import { settle } from './settle.ts'

const NOW = Date.UTC(2026, 11, 1) - 1
/** Times of the clock: on either side of the end of a month, and of a day. */
const TIMES = [NOW, Date.UTC(2026, 11, 1), Date.UTC(2026, 11, 2)]
const CHUNKS = 2
const ENTITIES = ['user:a', 'user:b', 'team:x', null] as const
const MODELS = ['m', 'n'] as const
/** The keys of the chunks, one each. */
const KEYS = ['key_1', 'key_2'] as const
const PAYERS: readonly Payer[] = ENTITIES.flatMap((entity) =>
  MODELS.flatMap((model) => KEYS.map((key_id) => ({ entity, model, key_id }))),
)

interface AskedLine extends Payer {
  worst: number
}

interface ReservedLine extends AskedLine {
  day: number
}

interface Spent extends Payer {
  day: number
  used: number
}

interface WorkerChunk {
  chunk: TestChunk
  worker: string
  held: ReservedLine[]
}

/** The cap and its counters, in tokens. */
interface Cap {
  amount: number
  window: LimitWindow
  counts: (payer: Payer) => string | null
}

const step = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant('reserve'), chunk: fc.nat(CHUNKS - 1), lines: lines() }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('settle'),
      chunk: fc.nat(CHUNKS - 1),
      count: fc.nat(6),
      share: share(),
    }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('die'), chunk: fc.nat(CHUNKS - 1) }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('clock'), time: fc.nat(TIMES.length - 1) }) },
  {
    weight: 1,
    arbitrary: fc.record({
      do: fc.constant('submit'),
      payer: fc.nat(PAYERS.length - 1),
      tokens: fc.nat(120),
    }),
  },
)

function lines() {
  const line = { entity: fc.nat(3), model: fc.nat(1), worst: fc.integer({ min: 1, max: 40 }) }
  return fc.array(fc.record(line), { maxLength: 6 })
}

/** The share of its worst case that a line uses; of doubles, nearly all would be next to zero. */
function share() {
  return fc.integer({ min: 0, max: 100 }).map((percent) => percent / 100)
}

const RUNS = Math.ceil(booksRuns() / 3)

test(`no order of ${RUNS} spends past a cap`, { timeout: 180_000 }, async () => {
  await using books = await testBooks()
  const caps = fc.record({
    ...{ project: fc.nat(200), user: fc.nat(80), team: fc.nat(80) },
    ...{ key: fc.nat(120), model: fc.nat(120), userOnModel: fc.nat(60) },
  })
  const property = fc.asyncProperty(
    caps,
    fc.array(step, { minLength: 10, maxLength: 40, size: 'max' }),
    async (amounts, steps) => {
      const rollback = new Error('rolled back')
      await books.store
        .write(async (tx) => {
          await run(tx, amounts, steps)
          throw rollback
        })
        .catch((error: unknown) => {
          if (error !== rollback) throw error
        })
    },
  )
  await fc.assert(property, { numRuns: RUNS, seed: 20261121 })
})

type Step = typeof step extends fc.Arbitrary<infer T> ? T : never

async function run(
  tx: Writer,
  amounts: Record<'project' | 'user' | 'team' | 'key' | 'model' | 'userOnModel', number>,
  steps: readonly Step[],
): Promise<void> {
  const made = await leasedChunks(tx, CHUNKS, NOW)
  const chunks = made.map((chunk, i) => ({ ...chunk, key_id: KEYS[i]! }))
  const { project_id } = chunks[0]!
  const isUser = ({ entity }: Payer) => (entity && entityType(entity) === 'user' ? entity : null)
  const limits: [terms: Partial<LimitRow> & { amount: number }, counts: Cap['counts']][] = [
    [{ amount: amounts.project }, () => ''],
    [{ amount: amounts.user, scope: 'entity_type', subject: 'user', window: 'day' }, isUser],
    [
      { amount: amounts.team, scope: 'entity', subject: 'team:x' },
      ({ entity }) => (entity === 'team:x' ? entity : null),
    ],
    [
      { amount: amounts.key, scope: 'key', subject: 'key_2' },
      ({ key_id }) => (key_id === 'key_2' ? '' : null),
    ],
    [
      { amount: amounts.model, scope: 'model', model: 'n', window: 'day' },
      ({ model }) => (model === 'n' ? '' : null),
    ],
    [
      { amount: amounts.userOnModel, scope: 'entity_type', subject: 'user', model: 'm' },
      (payer) => (payer.model === 'm' ? isUser(payer) : null),
    ],
  ]
  for (const [terms] of limits) await addLimit(tx, project_id, terms)
  const caps: Cap[] = limits.map(([{ amount, window = 'month' }, counts]) => ({ amount, window, counts }))
  const workers: WorkerChunk[] = chunks.map((chunk) => ({ chunk, worker: `wrk_${chunk.idx}`, held: [] }))
  for (const { chunk, worker } of workers) await lease(tx, chunk, worker)
  const spent: Spent[] = []
  let now = NOW

  for (const step of steps) {
    const at = workers['chunk' in step ? step.chunk : 0]!
    if ('lines' in step) {
      const { key_id } = at.chunk
      const asked = step.lines.map(({ entity, model, worst }) => ({
        ...{ entity: ENTITIES[entity]!, model: MODELS[model]!, key_id, worst },
      }))
      await take(tx, at, asked, now)
    } else if ('share' in step) {
      spent.push(...(await finish(tx, at, step.count, step.share, now)))
    } else if ('tokens' in step) {
      await submit(tx, project_id, PAYERS[step.payer]!, step.tokens, caps, spent, now)
    } else if ('time' in step) {
      now = TIMES[step.time]!
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

async function take(tx: Writer, at: WorkerChunk, asked: readonly AskedLine[], now: number): Promise<void> {
  const lines = asked.map(({ entity, model, worst }, position) => ({
    position,
    entity,
    model,
    projected: spendOf(worst),
    isSent: false,
    isReserved: false,
  }))
  const reservation = await reserve(tx, { claim: at.chunk, lines }, now)
  assert.ok(reservation, 'the lease holds')
  const { allowed, refused, waiting, day } = reservation
  assert.equal(allowed.length + refused.size + waiting.length, asked.length, 'each line has one answer')
  at.held.push(...allowed.map((position) => ({ ...asked[position]!, day })))
}

async function finish(tx: Writer, at: WorkerChunk, count: number, share: number, now: number) {
  const done = at.held.splice(0, count).map((line) => ({ ...line, used: Math.floor(line.worst * share) }))
  const ended = done.map(({ entity, model, day, worst, used }) =>
    endedLine({
      tokens: used,
      entity,
      model,
      day,
      projected: spendOf(worst),
    }),
  )
  await settle(tx, [{ ...at.chunk, tallies: tally(ended), last: false, hasReservations: true }], now)
  return done
}

/** A batch is admitted exactly when it fits beside the spent amount (no other batch has a projected cost here). */
async function submit(
  tx: Writer,
  project_id: string,
  payer: Payer,
  tokens: number,
  caps: readonly Cap[],
  spent: readonly Spent[],
  now: number,
): Promise<void> {
  const { entity, key_id, model: id } = payer
  const sums = {
    ...emptySums(id, entity),
    lines: 1,
    input_tokens: tokens,
  }
  const model: Model = {
    id: id ?? '',
    context_window: null,
    max_output_tokens: null,
    price: { input_picos: 10_000, output_picos: 0 },
    priced: true,
    supports: { structured_output: true, tools: true },
    endpoints: ['/v1/chat/completions'],
    created: 0,
  }
  const projection = projectBatch({ groups: [sums], unattributed: [] }, new Map([[model.id, model]]), {
    key_id,
    metadata: null,
    header_entity: null,
    reask: null,
  })
  const fits = caps.every((cap) => {
    const spender = cap.counts(payer)
    return spender === null || tokens === 0 || spentUnder(cap, spender, spent, now) + tokens <= cap.amount
  })
  const apiError = await admit(tx, project_id, projection, 'en', now).then(
    () => null,
    (error: unknown) => error,
  )
  if (apiError !== null) assert.ok(apiError instanceof ApiError && apiError.code === 'usage_limit_exceeded')
  assert.equal(apiError === null, fits, `${tokens} tokens for ${JSON.stringify(payer)}`)
}

/** The tokens of a spender in the cap's window that contains `at`. */
function spentUnder(cap: Cap, spender: string, spent: readonly Spent[], at: number): number {
  return spent
    .filter((line) => isCounted(cap, spender, line, at))
    .reduce((tokens, { used }) => tokens + used, 0)
}

function isCounted(cap: Cap, spender: string, line: Omit<Spent, 'used'>, at: number): boolean {
  const { start, end } = windowAt(cap.window, at)
  return cap.counts(line) === spender && line.day >= dayOf(start) && line.day < dayOf(end)
}

function check(caps: readonly Cap[], spent: readonly Spent[], workers: readonly WorkerChunk[]): void {
  for (const cap of caps) {
    for (const spender of new Set(PAYERS.map((payer) => cap.counts(payer)))) {
      if (spender === null) continue
      for (const at of TIMES) {
        const used = spentUnder(cap, spender, spent, at)
        const held = heldUnder(cap, spender, workers, at)
        assert.ok(used + held <= cap.amount, `${spender || 'the project'} is over`)
      }
    }
  }
}

function heldUnder(cap: Cap, spender: string, workers: readonly WorkerChunk[], at: number): number {
  return workers
    .flatMap(({ held }) => held)
    .filter((line) => isCounted(cap, spender, line, at))
    .reduce((sum, { worst }) => sum + worst, 0)
}

/** Asserts that the books equal the model. */
async function balance(
  tx: Writer,
  project_id: string,
  spent: readonly Spent[],
  workers: readonly WorkerChunk[],
): Promise<void> {
  const usage = await tx
    .selectFrom('usage_days')
    .select(['total_tokens as tokens', 'day', 'entity', 'model', 'key_id'])
    .where('project_id', '=', project_id)
    .execute()
  for (const { day, entity, model, key_id, tokens } of usage)
    assert.equal(
      tokens,
      spent
        .filter((one) => one.day === day && (one.entity ?? '') === entity)
        .filter((one) => one.model === model && one.key_id === key_id)
        .reduce((n, { used }) => n + used, 0),
      'each day has what was reserved on it',
    )
  const entries = await tokensOf(tx, 'ledger_entries', project_id)
  const holds = await tokensOf(tx, 'reservations', project_id)
  const all = spent.reduce((sum, { used }) => sum + used, 0)
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
