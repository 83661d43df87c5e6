import assert from 'node:assert/strict'
import { test } from 'node:test'
import { scriptedBackend } from '../../../test/fakes/scripted-backend.ts'
import { queuedBatch, RETRY, SILENT } from '../../../test/support/queued-batch.ts'
import { addLimit } from '../../../test/support/test-books.ts'
import type { Clock } from '../../domain/clock.ts'
import { dayOf } from '../../domain/utc-day.ts'
import { settle } from '../../ledger/settle.ts'
import { tally } from '../../ledger/tally.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Outcome } from '../../results/outcome.ts'
import { releaseChunk } from '../../store/chunks.ts'
import { reservedByProject } from '../../store/reservations.ts'
import { addProjectDays } from '../../store/usage-days.ts'
import { Sender } from '../send/sender.ts'
import { Upstream } from '../send/upstream.ts'
import { LimitGate } from './limit-gate.ts'
import { ReservedFunds } from './reserved-funds.ts'

const HOUR_MS = 3_600_000

test('without a limit nothing is reserved', async () => {
  await using world = await makeWorld({ lines: 2 })
  const [chunk] = world.chunks
  assert.equal(await world.open(chunk!), null)
  assert.deepEqual(world.sent, ['l1', 'l2'])
  assert.equal(await world.reserved(), 0)
})

test('lines are reserved and sent as far as the limit has room; the others wait', async () => {
  await using world = await makeWorld({ lines: 3, roomFor: 2 })
  const [chunk] = world.chunks
  assert.equal(await world.open(chunk!), null)
  assert.deepEqual(world.sent, ['l1', 'l2'])
  assert.deepEqual([...chunk!.waiting], [2])
  assert.equal(await world.reserved(), 2)
})

test('a line that is larger than the limit is rejected, and says so', async () => {
  await using world = await makeWorld({ lines: 1, roomFor: 0.5 })
  assert.equal(await world.open(world.chunks[0]!), null)
  assert.deepEqual(world.sent, [])
  assert.deepEqual(
    world.outcomes.map(({ line, code }) => `l${line} ${code}`),
    ['l1 usage_limit_exceeded'],
  )
})

test('a chunk of which no line has room is postponed, and its project is paused for a moment', async () => {
  await using world = await makeWorld({ chunks: 2, lines: 1, roomFor: 1 })
  const [first, second] = world.chunks as [OpenChunk, OpenChunk]
  assert.equal(await world.open(first), null)
  assert.deepEqual(await world.open(second), { retryAt: world.clock.now() + 1_500 })
  assert.deepEqual(world.gate.pausedProjects(), [world.project_id])
  await world.clock.advance(250)
  assert.deepEqual(world.gate.pausedProjects(), [])
})

test('waiting lines are sent when the limit is raised', async () => {
  await using world = await makeWorld({ lines: 3, roomFor: 1 })
  await world.open(world.chunks[0]!)
  assert.deepEqual(world.sent, ['l1'])
  await world.changeLimit(3)
  await world.gate.recheck(new Map([[world.project_id, 2]]))
  assert.deepEqual(world.sent, ['l1', 'l2', 'l3'])
  assert.equal(await world.reserved(), 3)
})

test('unsent lines are withdrawn when the limit is lowered, and their reservations are released', async () => {
  await using world = await makeWorld({ lines: 3, roomFor: 3, concurrency: 1 })
  const [chunk] = world.chunks
  await world.open(chunk!)
  assert.equal(await world.reserved(), 3)
  await world.changeLimit(2)
  await world.gate.recheck(new Map([[world.project_id, 2]]))
  assert.equal(await world.reserved(), 2)
  assert.deepEqual([...chunk!.waiting], [2])
})

test('an open chunk whose lines all wait is parked', async () => {
  await using world = await makeWorld({ chunks: 2, lines: 1, roomFor: 2 })
  world.maySend = false
  for (const chunk of world.chunks) await world.open(chunk)
  await world.changeLimit(1)
  await world.gate.recheck(new Map([[world.project_id, 2]]))
  assert.equal(world.parked.length, 1)
  assert.equal(await world.reserved(), 1)
})

test('a chunk whose lease was lost reserves nothing', async () => {
  await using world = await makeWorld({ lines: 2, roomFor: 1 })
  const [chunk] = world.chunks
  await world.open(chunk!)
  await world.store.write((tx) => releaseChunk(tx, chunk!.claim))
  await world.changeLimit(2)
  await world.gate.recheck(new Map([[world.project_id, 2]]))
  assert.ok(world.lost.includes(chunk!))
  assert.deepEqual(world.sent, ['l1'])
  assert.equal(await world.reserved(), 0)
})

/** Into another day, from 22:13, and within the window of the batch. */
const SET = [
  [-1, -23],
  [1, 2],
] as const

for (const [, hours] of SET)
  test(`a line is charged to the day on which it was reserved, though the clock is set by ${hours} hours meanwhile`, async () => {
    await using world = await makeWorld({ lines: 1, roomFor: 1 })
    const reservedOn = dayOf(world.clock.now())
    await world.open(world.chunks[0]!)
    world.skewMs = hours * HOUR_MS
    await world.inFlight[0]!.answer()
    assert.deepEqual(
      world.outcomes.map(({ day }) => day),
      [reservedOn],
    )
  })

test('a line that no limit counts is charged to the day on which it ends', async () => {
  await using world = await makeWorld({ lines: 1 })
  const sentOn = dayOf(world.clock.now())
  await world.open(world.chunks[0]!)
  world.skewMs = 2 * HOUR_MS
  await world.inFlight[0]!.answer()
  assert.deepEqual(
    world.outcomes.map(({ day }) => day),
    [sentOn + 1],
  )
})

for (const [days, hours] of SET)
  test(`unsent lines are checked again under the limits of the day when the clock is set by ${hours} hours`, async () => {
    await using world = await makeWorld({ lines: 3, roomFor: 3, concurrency: 1 })
    const [chunk] = world.chunks as [OpenChunk]
    const first = dayOf(world.clock.now())
    await world.open(chunk)
    await world.spend(2, first + days)
    world.skewMs = hours * HOUR_MS
    await world.gate.recheck()
    assert.deepEqual([...chunk.waiting], [1, 2], 'one is in flight, and there is room for one line')
    await world.inFlight[0]!.answer()
    assert.deepEqual(world.sent, ['l1'])
    await world.settle()
    await world.gate.recheck()
    assert.deepEqual(world.sent, ['l1', 'l2'])
    await world.inFlight[0]!.answer()
    assert.deepEqual(
      world.outcomes.map(({ day }) => day),
      [first, first + days],
    )
  })

interface WorldOptions {
  chunks?: number
  lines: number
  /** For how many lines the project's limit has room; without it there is no limit. */
  roomFor?: number
  concurrency?: number
}

/** A gate before a real sender, and the leased chunks of one batch. All lines have the same projected spend. */
async function makeWorld({ chunks: count = 1, lines, roomFor, concurrency = 8 }: WorldOptions) {
  const queued = await queuedBatch({ chunks: count, lines })
  const { store, models, project_id } = queued
  const clock: Clock = { ...queued.clock, now: () => queued.clock.now() + world.skewMs }
  const chunks = await queued.open()
  const tokens = chunks[0]!.lines[0]!.projected.tokens
  if (roomFor !== undefined)
    await store.write((tx) =>
      addLimit(tx, project_id, { amount: Math.floor(roomFor * tokens), window: 'day' }),
    )
  const server = scriptedBackend()
  const open = new Set<OpenChunk>()
  const funds = new ReservedFunds()
  const world = {
    ...queued,
    chunks,
    sent: server.sent,
    inFlight: server.inFlight,
    /** By how much the worker's clock was set. */
    skewMs: 0,
    outcomes: [] as Outcome[],
    parked: [] as OpenChunk[],
    lost: [] as OpenChunk[],
    maySend: true,
    /** Admits a chunk; sends its allowed lines unless it is postponed. */
    async open(chunk: OpenChunk) {
      const postponed = await gate.admit(chunk, roomFor === undefined ? 0 : 1)
      if (postponed) return postponed
      open.add(chunk)
      funds.open(chunk)
      sender.start(chunk)
      return null
    },
    /** How many lines are reserved. */
    reserved: async (): Promise<number> => (await reservedByProject(store.read, project_id)).tokens / tokens,
    /** So many lines' tokens are spent on a day, beside the chunks. */
    spend: (count: number, day: number) =>
      store.write((tx) => addProjectDays(tx, [{ project_id, day, cost_nanos: 0, tokens: count * tokens }])),
    /** Enters the lines that have ended in the ledger. */
    settle: () =>
      store.write(async (tx) => {
        const [{ claim }] = chunks as [OpenChunk]
        const tallies = tally(world.outcomes.map((outcome) => ({ ...outcome, usage: null })))
        await settle(tx, [{ ...claim, tallies, last: false, hasReservations: true }], clock.now())
      }),
    changeLimit: (room: number) =>
      store.write((tx) =>
        tx
          .updateTable('limits')
          .set({ amount: room * tokens })
          .execute(),
      ),
  }
  const upstream = new Upstream({
    backend: server.backend,
    concurrency_max: concurrency,
    modelAlias: null,
  })
  const sender = new Sender({
    clock,
    random: () => 0.5,
    log: SILENT,
    models,
    upstreams: new Map([['m', [upstream]]]),
    retry: RETRY,
    maySend: () => world.maySend,
    onBegun() {},
    funds,
    onInsufficientFunds: () => assert.fail('the reserved funds cover every line'),
    onOutcome(chunk, outcome) {
      chunk.finish(outcome)
      world.outcomes.push(outcome)
    },
    onIdle() {},
  })
  const gate = new LimitGate({
    store,
    clock,
    random: () => 0.5,
    sender,
    funds,
    settle: async () => {},
    openChunks: () => open,
    park: (chunk) => world.parked.push(chunk),
    onLost: (chunk) => world.lost.push(chunk),
  })
  return Object.assign(world, { gate })
}
