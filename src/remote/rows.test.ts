import assert from 'node:assert/strict'
import { test } from 'node:test'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import { REMOTE, UNSUBMITTED } from '../dispatch/line-state.ts'
import { dayOf } from '../domain/utc-day.ts'
import { releaseChunk } from '../store/chunks.ts'
import type { BatchApiUpstream } from './batch-api-upstream.ts'
import { RemoteRows } from './rows.ts'

test('lines at a batch API are charged to the day of their reservation, whichever worker records them', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 3 })
  const { store, clock } = world
  const rows = new RemoteRows({
    ...{ store, clock },
    lanes: new Map(),
    lines: { ledByRemote() {} },
    funds: { setReserved() {} },
    outagePatienceMs: 0,
    settle: async () => {},
  })
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
