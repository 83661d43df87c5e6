import assert from 'node:assert/strict'
import { test } from 'node:test'
import { lineWorld } from '../../../../test/support/line-world.ts'
import { addLimit, total } from '../../../../test/support/test-books.ts'
import { dayOf } from '../../../domain/days.ts'
import { wireError } from '../../../domain/errors.ts'
import { settle } from '../../../ledger/settle.ts'
import { releaseChunk } from '../../../store/chunks.ts'
import { amountsByKey } from '../../../store/ledger.ts'
import { addProjectDays } from '../../../store/usage.ts'
import { FOLLOWING, REMOTE, UNFUNDED, UNSUBMITTED, waitOf } from '../../line-state.ts'
import type { Run } from '../../run.ts'
import { LimitGate } from './limit-gate.ts'

const HOUR_MS = 3_600_000

test('without a limit nothing is reserved', async () => {
  await using world = await makeWorld({ lines: 2 })
  const [chunk] = world.runs
  assert.equal(await world.open(chunk!), null)
  assert.deepEqual(world.sent, ['l1', 'l2'])
  assert.equal(await world.reserved(), 0)
})

test('lines are reserved and sent as far as the limit has room; the others wait', async () => {
  await using world = await makeWorld({ lines: 3, roomFor: 2 })
  const [chunk] = world.runs
  assert.equal(await world.open(chunk!), null)
  assert.deepEqual(world.sent, ['l1', 'l2'])
  assert.deepEqual(chunk!.positions(UNFUNDED), [2])
  assert.equal(await world.reserved(), 2)
})

test('a line that is larger than the limit is rejected, and says so', async () => {
  await using world = await makeWorld({ lines: 1, roomFor: 0.5 })
  assert.equal(await world.open(world.runs[0]!), null)
  assert.deepEqual(world.sent, [])
  assert.deepEqual(world.ended, ['l1 usage_limit_exceeded'])
})

test('a chunk with a line that cannot run is opened when a limit rejects all the others', async () => {
  await using world = await makeWorld({ lines: 2, roomFor: 0.5 })
  const [chunk] = world.runs as [Run]
  Object.assign(chunk.lines[1]!, { fault: wireError('invalid_request') })
  assert.equal(await world.open(chunk), null)
  assert.deepEqual(world.ended, ['l1 usage_limit_exceeded', 'l2 invalid_request'])
})

test('a chunk of which no line has room is postponed, and its project is paused for a moment', async () => {
  await using world = await makeWorld({ chunks: 2, lines: 1, roomFor: 1 })
  const [first, second] = world.runs as [Run, Run]
  assert.equal(await world.open(first), null)
  assert.deepEqual(await world.open(second), { retryAt: world.clock.now() + 1_500 })
  assert.deepEqual(world.gate.pausedProjects(), [world.project_id])
  await world.advance(250)
  assert.deepEqual(world.gate.pausedProjects(), [])
})

test('waiting lines are sent when the limit is raised', async () => {
  await using world = await makeWorld({ lines: 3, roomFor: 1 })
  await world.open(world.runs[0]!)
  assert.deepEqual(world.sent, ['l1'])
  await world.changeLimit(3)
  await world.recheck(new Map([[world.project_id, 2]]))
  assert.deepEqual(world.sent, ['l1', 'l2', 'l3'])
  assert.equal(await world.reserved(), 3)
})

test('unsent lines are withdrawn when the limit is lowered, and their reservations are released', async () => {
  await using world = await makeWorld({ lines: 3, roomFor: 3, concurrency: 1 })
  const [chunk] = world.runs
  await world.open(chunk!)
  assert.equal(await world.reserved(), 3)
  await world.changeLimit(2)
  await world.recheck(new Map([[world.project_id, 2]]))
  assert.equal(await world.reserved(), 2)
  assert.deepEqual(chunk!.positions(UNFUNDED), [2])
})

test('an open chunk whose lines all wait is parked', async () => {
  await using world = await makeWorld({ chunks: 2, lines: 1, roomFor: 2 })
  world.maySend = false
  for (const chunk of world.runs) await world.open(chunk)
  await world.changeLimit(1)
  await world.recheck(new Map([[world.project_id, 2]]))
  assert.equal(world.parked().length, 1)
  assert.equal(await world.reserved(), 1)
})

test('an open chunk is parked whose other lines are at a batch API, or follow an identical line', async () => {
  await using world = await makeWorld({ lines: 3, roomFor: 2 })
  world.maySend = false
  const [run] = world.runs
  await world.open(run!)
  run!.move(0, UNSUBMITTED, 'a test')
  run!.move(0, REMOTE, 'a test')
  run!.move(1, FOLLOWING, 'a test')
  await world.recheck()
  assert.deepEqual(run!.positions(UNFUNDED), [2])
  assert.equal(world.parked().length, 1)
})

test('a chunk whose lease was lost reserves nothing', async () => {
  await using world = await makeWorld({ lines: 2, roomFor: 1 })
  const [chunk] = world.runs
  await world.open(chunk!)
  await world.store.write((tx) => releaseChunk(tx, chunk!.claim))
  await world.changeLimit(2)
  await world.recheck(new Map([[world.project_id, 2]]))
  assert.ok(world.lost().includes(chunk!))
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
    await world.open(world.runs[0]!)
    world.skewMs = hours * HOUR_MS
    await world.server.inFlight[0]!.answer()
    assert.deepEqual(world.days(), [reservedOn])
  })

test('a line that no limit counts is charged to the day on which it ends', async () => {
  await using world = await makeWorld({ lines: 1 })
  const sentOn = dayOf(world.clock.now())
  await world.open(world.runs[0]!)
  world.skewMs = 2 * HOUR_MS
  await world.server.inFlight[0]!.answer()
  assert.deepEqual(world.days(), [sentOn + 1])
})

for (const [days, hours] of SET)
  test(`unsent lines are checked again under the limits of the day when the clock is set by ${hours} hours`, async () => {
    await using world = await makeWorld({ lines: 3, roomFor: 3, concurrency: 1 })
    const [chunk] = world.runs as [Run]
    const first = dayOf(world.clock.now())
    await world.open(chunk)
    await world.spend(2, first + days)
    world.skewMs = hours * HOUR_MS
    await world.recheck()
    assert.deepEqual(chunk.positions(UNFUNDED), [1, 2], 'one is in flight, and there is room for one line')
    await world.server.inFlight[0]!.answer()
    assert.deepEqual(world.sent, ['l1'])
    await world.enter()
    await world.recheck()
    assert.deepEqual(world.sent, ['l1', 'l2'])
    await world.server.inFlight[0]!.answer()
    assert.deepEqual(world.days(), [first, first + days])
  })

test('lines are over the limit of the day to which they are charged, also when another day has begun', async () => {
  await using world = await makeWorld({ lines: 1, roomFor: 2 })
  const [run] = world.runs as [Run]
  const day = dayOf(world.clock.now())
  await world.open(run)
  await world.spend(2, day)
  world.skewMs = 2 * HOUR_MS
  assert.deepEqual([await world.gate.isOver(run, day), await world.gate.isOver(run, null)], [true, false])
})

interface WorldOptions {
  chunks?: number
  lines: number
  /** For how many lines the project's limit has room; without it there is no limit. */
  roomFor?: number
  concurrency?: number
}

/** A gate before a real sender, and the leased chunks of one batch. All lines have the same projected spend. */
async function makeWorld({ chunks: count = 1, lines: size, roomFor, concurrency = 8 }: WorldOptions) {
  const base = await lineWorld({ chunks: count, lines: size, concurrency })
  const { store, project_id, clock, funds, lines, run } = base
  const { tokens } = run.lines[0]!.projected
  if (roomFor !== undefined)
    await store.write((tx) =>
      addLimit(tx, project_id, { amount: Math.floor(roomFor * tokens), window: 'day' }),
    )
  const open = new Set<Run>()
  const gate = new LimitGate({
    ...{ store, clock, lines, funds },
    models: base.models,
    random: () => 0.5,
    turn: base.turn,
    recorder: { settle: async () => {} },
    runs: open,
  })
  const { settled } = base
  return Object.assign(base, {
    gate,
    sent: base.server.sent,
    /** Runs that are to be parked, since a check of the limits has left nothing else to do. */
    parked(): Run[] {
      const none = { isPaused: false, followsItself: true, isBlocked: false }
      return base.changes.flatMap((change) => {
        if (change.kind !== 'checked') return []
        const wait = waitOf(change.run, { ...none, isChecked: !gate.mayFree(change.run) })
        return wait === 'usage_limit' ? [change.run] : []
      })
    },
    /** Runs whose lease is lost. */
    lost(): Run[] {
      return base.changes.flatMap((change) =>
        change.kind === 'stopped' && change.reason === 'lost' ? [change.run] : [],
      )
    },
    /** Admits a chunk; sends its allowed lines unless it is postponed. */
    async open(run: Run) {
      lines.parked.restore(run)
      const postponed = await gate.admit(run, roomFor === undefined ? 0 : 1, false)
      if (postponed) return postponed
      open.add(run)
      funds.open(run)
      lines.open(run)
      await settled()
      return null
    },
    async recheck(versions?: ReadonlyMap<string, number>) {
      await gate.recheck(versions)
      await settled()
    },
    /** The days to which the lines that have ended are charged. */
    days: () => run.results.fresh.tallies.all.map(({ day }) => day),
    /** How many lines are reserved. */
    reserved: async (): Promise<number> =>
      total(await amountsByKey(store.read, 'reservations', project_id)).tokens / tokens,
    /** So many lines' tokens are spent on a day, beside the chunks. */
    spend: (count: number, day: number) =>
      store.write((tx) =>
        addProjectDays(tx, [
          ...[
            {
              project_id,
              day,
              key_id: '',
              model: 'm',
              cost_nanos: 0,
              tokens: count * tokens,
              requests: count,
            },
          ],
        ]),
      ),
    /** Enters the lines that have ended in the ledger. */
    enter: () =>
      store.write(async (tx) => {
        const tallies = run.results.fresh.tallies.all
        await settle(tx, [{ ...run.claim, tallies, last: false, hasReservations: true }], clock.now())
      }),
    changeLimit: (room: number) =>
      store.write((tx) =>
        tx
          .updateTable('limits')
          .set({ amount: room * tokens })
          .execute(),
      ),
  })
}
