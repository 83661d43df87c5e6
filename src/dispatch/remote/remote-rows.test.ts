import assert from 'node:assert/strict'
import { test } from 'node:test'
import { queuedBatch } from '../../../test/support/queued-batch.ts'
import { dayOf } from '../../domain/utc-day.ts'
import { releaseChunk } from '../../store/chunks.ts'
import { freshJob } from '../send/lane.ts'
import type { Sender } from '../send/sender.ts'
import type { Upstream } from '../send/upstream.ts'
import { RemoteRows } from './remote-rows.ts'

test('lines at a batch API are charged to the day of their reservation, whichever worker records them', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 3 })
  const { store, clock } = world
  const sender = { lanes: new Map() } as Pick<Sender, 'lanes'> as Sender
  const rows = new RemoteRows({
    store,
    clock,
    sender: () => sender,
    outagePatienceMs: 0,
    settle: async () => {},
  })
  const today = dayOf(clock.now())
  const [sent] = await world.open()
  for (const position of [0, 1]) sent!.reserveOn(position, today + 1)
  const jobs = [0, 1].map((position) => freshJob(sent!, position))
  assert.ok(await rows.intend(sent!, { name: 'cell' } as Upstream, jobs))
  await store.write((tx) => releaseChunk(tx, sent!.claim))

  const [recorded] = await world.open()
  await rows.load(recorded!)
  assert.deepEqual(
    [0, 1, 2].map((position) => recorded!.dayOf(position, clock.now())),
    [today + 1, today + 1, today],
  )
})
