// The loop of docs/scaling.md: an autoscaler reads GET /v1/demand and starts and stops replicas of a model server, over a
// simulated week. The API and its database are real; replicas answer tokens at their rate, the nearest deadline first.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { randomOf } from '../../src/backends/sim/seeded-random.ts'
import { DAY_MS, HOUR_MS } from '../../src/domain/days.ts'
import { deleteProjectedSpend, insertProjectedSpend } from '../../src/store/ledger.ts'
import { updateRows } from '../../src/store/rows.ts'
import { testServer } from '../support/test-server.ts'

const STEP_MS = 10 * 60_000
/** Tokens per second of one replica. */
const RATE = 4_000
const TOKENS_PER_LINE = 2_000
const REPLICAS_MAX = 8
/** A replica is paid for while it starts, and the last one for so long after its last line (`cooldownPeriod` of KEDA). */
const START_MS = STEP_MS
const COOLDOWN_MS = STEP_MS

interface Batch {
  id: string
  deadline: number
  tokens: number
}

interface Arrival {
  at: number
  windowMs: number
  tokens: number
}

/** On five days a large batch in the evening, and some by day that are wanted in four hours; then a weekend. */
function week(start: number, seed: string): Arrival[] {
  const random = randomOf(Buffer.from(seed))
  const between = (low: number, high: number): number => low + random.fraction() * (high - low)
  const arrivals: Arrival[] = []
  for (let day = 0; day < 5; day++) {
    const at = start + day * DAY_MS
    arrivals.push({ at: at + 20 * HOUR_MS, windowMs: 24 * HOUR_MS, tokens: between(100e6, 250e6) })
    for (let i = 0; i < 6; i++)
      arrivals.push({
        at: at + between(7, 18) * HOUR_MS,
        windowMs: 4 * HOUR_MS,
        tokens: between(5e6, 60e6),
      })
  }
  return arrivals.sort((a, b) => a.at - b.at)
}

function replicasOf(demand: { [name: string]: unknown }): number {
  const data = demand.data as { model: string; replicas: number }[]
  return data.find(({ model }) => model === 'sim-1')?.replicas ?? 0
}

test('replicas that follow the demand finish every batch in time, and idle for little', async () => {
  await using server = await testServer()
  const { store, clock } = { ...server.deps, clock: server.clock }
  const { key } = await server.issue({ scopes: ['operator'] })
  const file = await server.processedFile()
  const { project_id, id: key_id } = server.key
  const spend = async ({ id: batch_id, tokens }: Batch): Promise<void> =>
    await store.write(async (tx) => {
      await deleteProjectedSpend(tx, batch_id)
      const of = { batch_id, project_id, key_id, model: 'sim-1', entity: '', cost_nanos: 0 }
      const requests = Math.ceil(tokens / TOKENS_PER_LINE)
      if (tokens > 0) await insertProjectedSpend(tx, [{ ...of, tokens: Math.ceil(tokens), requests }])
      else await updateRows(tx, 'batches', { id: batch_id }).set({ status: 'completed' }).execute()
    })

  const start = clock.now()
  const arrivals = week(start, 'one')
  const best = arrivals.reduce((sum, { tokens }) => sum + tokens, 0) / RATE / 3600
  let open: Batch[] = []
  /** When each replica is ready. */
  let replicas: number[] = []
  let neededAt = Number.NEGATIVE_INFINITY
  let hours = 0
  let starts = 0
  for (; clock.now() < start + 7 * DAY_MS; await clock.advance(STEP_MS)) {
    const now = clock.now()
    // Nothing happens before the next batch comes.
    if (open.length === 0 && replicas.length === 0 && (arrivals[0]?.at ?? Number.POSITIVE_INFINITY) > now)
      continue
    for (let next = arrivals[0]; next !== undefined && next.at <= now; next = arrivals[0]) {
      arrivals.shift()
      const { id } = await server.createBatch(file)
      const batch = { id, deadline: next.at + next.windowMs, tokens: next.tokens }
      await store.write((tx) =>
        updateRows(tx, 'batches', { id }).set({ expires_at: batch.deadline }).execute(),
      )
      await spend(batch)
      open.push(batch)
    }
    const { json } = await server.call('GET', `/v1/demand?tokens_per_s=${RATE}`, { key })
    const wanted = replicasOf(json)
    if (wanted > 0) neededAt = now
    const kept = wanted === 0 && now - neededAt <= COOLDOWN_MS ? Math.min(1, replicas.length) : wanted
    const count = Math.min(REPLICAS_MAX, kept)
    if (replicas.length === 0 && count > 0) starts++
    replicas = replicas.slice(0, count)
    while (replicas.length < count) replicas.push(now + START_MS)
    hours += (replicas.length * STEP_MS) / HOUR_MS

    const rate = replicas.filter((ready) => ready <= now).length * RATE
    let left = (rate * STEP_MS) / 1000
    for (const batch of open.sort((a, b) => a.deadline - b.deadline)) {
      const done = Math.min(left, batch.tokens)
      if (done === 0) continue
      left -= done
      batch.tokens -= done
      await spend(batch)
      const at = now + STEP_MS - (left / rate) * 1000
      if (batch.tokens === 0)
        assert.ok(at <= batch.deadline, `${batch.id} is late by ${at - batch.deadline} ms`)
    }
    open = open.filter(({ tokens }) => tokens > 0)
  }
  assert.deepEqual(
    [open, arrivals, replicas],
    [[], [], []],
    'all is done, and no replica runs at the weekend',
  )
  assert.ok(starts > 1, 'they went to zero and came back')
  assert.ok(hours <= 1.15 * best, `${hours.toFixed(1)} replica-hours where ${best.toFixed(1)} do`)
})
