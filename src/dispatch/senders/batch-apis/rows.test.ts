import assert from 'node:assert/strict'
import { test } from 'node:test'
import { queuedBatch } from '../../../../test/support/queued-batch.ts'
import { remoteRows } from '../../../../test/support/remote-rows.ts'
import { dayOf } from '../../../domain/days.ts'
import { releaseChunk } from '../../../store/chunks.ts'
import { pauseBatch } from '../../../store/pauses.ts'
import { ReservedFunds } from '../../gates/limits/reserved-funds.ts'
import { REMOTE, UNSUBMITTED } from '../../line-state.ts'
import type { Run } from '../../run.ts'
import type { BatchApiUpstream } from './batch-api-upstream.ts'

test('lines at a batch API are charged to the day of their reservation, whichever worker records them', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 3 })
  const { store, clock } = world
  const rows = remoteRows(world)
  const today = dayOf(clock.now())
  const [sent] = await world.open()
  for (const position of [0, 1]) {
    sent!.reserveOn(position, today + 1)
    for (const state of [UNSUBMITTED, REMOTE]) sent!.move(position, state, 'it is handed over')
  }
  assert.ok(await rows.intend(sent!, { name: 'cell' } as BatchApiUpstream, [0, 1]))
  await store.write((tx) => releaseChunk(tx, sent!.claim))

  const [recorded] = await world.open()
  await rows.load(recorded!)
  assert.deepEqual(recorded!.positions(REMOTE), [0, 1])
  assert.deepEqual(
    [0, 1, 2].map((position) => recorded!.reservedOn(position)),
    [today + 1, today + 1, null],
  )
})

test('a pause holds no chunk back whose lines a batch API has, so that their results are recorded', async () => {
  await using world = await queuedBatch({ chunks: 2, lines: 1 })
  const { store, clock } = world
  const rows = remoteRows(world)
  const runs = await world.open()
  await rows.intend(runs[0]!, { name: 'cell' } as BatchApiUpstream, [0])
  for (const { claim } of runs) await store.write((tx) => releaseChunk(tx, claim))
  await store.write((tx) => pauseBatch(tx, runs[0]!.batch.id, clock.now()))
  const chunks = await world.chunks()
  assert.deepEqual(
    chunks.map(({ state }) => state),
    ['ready', 'parked'],
  )
})

test('lines that a batch API leaves are reserved by their chunk again, and wait for a check of the limits', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 2 })
  const funds = new ReservedFunds({ checkLimits() {} })
  const rows = remoteRows(world, funds)
  const [run] = (await world.open()) as [Run]
  run.isLimited = true
  for (const position of [0, 1]) {
    run.setAllowed(position, true)
    funds.setReserved(run, position, true)
    for (const state of [UNSUBMITTED, REMOTE]) run.move(position, state, 'it is handed over')
  }
  const row = await rows.intend(run, { name: 'cell' } as BatchApiUpstream, [0, 1])
  assert.deepEqual([run.isReserved(0), run.isReserved(1)], [false, false], 'the batch there has it')
  assert.ok(await rows.settle(run, row!, 'done'))
  assert.deepEqual([run.isReserved(0), run.isReserved(1)], [true, true])
  assert.deepEqual([run.isAllowed(0), run.isAllowed(1)], [false, false])
})

test('a remote batch is settled only once its answers are committed', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 1 })
  const committed = Promise.withResolvers<void>()
  const rows = remoteRows(world, { setReserved() {} }, () => committed.promise)
  const [run] = (await world.open()) as [Run]
  for (const state of [UNSUBMITTED, REMOTE]) run.move(0, state, 'it is handed over')
  const row = (await rows.intend(run, { name: 'cell' } as BatchApiUpstream, [0]))!
  const settled = rows.settle(run, row, 'done')
  const stateOf = async () =>
    (await world.store.read.selectFrom('remote_batches').select('state').executeTakeFirst())?.state
  await world.clock.advance(10)
  assert.equal(await stateOf(), 'intended')
  committed.resolve()
  assert.ok(await settled)
  assert.equal(await stateOf(), 'done')
})
