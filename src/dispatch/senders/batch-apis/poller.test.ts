import assert from 'node:assert/strict'
import { test } from 'node:test'
import { queuedBatch, SILENT } from '../../../../test/support/queued-batch.ts'
import type { BatchApi } from '../../../backends/batch-api/batch-api.ts'
import { newId } from '../../../domain/ids.ts'
import { changeRemoteBatch, intendRemoteBatch, settleRemoteBatch } from '../../../store/remote-batches.ts'
import { openSession, setWorkerReport } from '../../../store/workers.ts'
import { BatchApiUpstream } from './batch-api-upstream.ts'
import { Poller } from './poller.ts'

const CHUNKS = 4
const MINUTE_MS = 60_000
const SETTLE_MS = 2_000
/** Of the first lease. */
const EPOCH = 1

test('the oldest batch at a batch API is looked at most often, and the next one as soon as it has ended', async () => {
  await using world = await makeWorld()
  await world.pollFor(10 * MINUTE_MS)
  const [first, ...others] = world.looks()
  for (const count of others) assert.ok(count > 3 && count * 2 < first!, `${count} looks, the first ${first}`)
  world.ended.add('there-0')
  let before = world.looks()
  while ((await world.states())[0] === 'open') {
    before = world.looks()
    await world.pollFor(1)
  }
  assert.equal(world.looks()[1], before[1]! + 1, 'the second one is looked at in the same moment')
  world.ended.add('there-1').add('there-2').add('there-3')
  await world.pollFor(MINUTE_MS)
  assert.deepEqual(await world.states(), ['ended', 'ended', 'ended', 'ended'])
})

test('a batch that became the oldest after a long wait is looked at ten times a second at first', async () => {
  await using world = await makeWorld()
  await world.pollFor(10 * MINUTE_MS)
  world.ended.add('there-0')
  while ((await world.states())[0] === 'open') await world.pollFor(1)
  const before = world.looks()
  await world.pollFor(1_000, 100)
  assert.ok(world.looks()[1]! - before[1]! >= 9, `${world.looks()[1]! - before[1]!} looks in a second`)
  await world.pollFor(10 * MINUTE_MS)
  const later = world.looks()
  await world.pollFor(10_000)
  assert.ok(world.looks()[1]! - later[1]! <= 1, 'and then ever less often')
})

test('a batch that was given up is cancelled there, and found by its name if its ID is not known', async () => {
  await using world = await makeWorld()
  await world.abandon()
  await world.pollFor(MINUTE_MS)
  assert.deepEqual(world.cancelled.sort(), ['found', 'there-1', 'there-2', 'there-3'])
})

test('a batch that was given up just after the call that creates it is looked for until that can have no effect', async () => {
  await using world = await makeWorld()
  world.findsFrom = world.clock.now() + 5 * SETTLE_MS
  await world.abandon(world.clock.now() + 4.5 * SETTLE_MS)
  await world.pollFor(10 * SETTLE_MS)
  assert.ok(world.cancelled.includes('found'))
})

test('the worker of one command looks at no batch but its own, and gives none up whose batch API it does not know', async () => {
  const onlyBatches = new Set<string>()
  await using world = await makeWorld({ onlyBatches, knows: false })
  await world.pollFor(60_000)
  assert.deepEqual(new Set(await world.states()), new Set(['open']))
  onlyBatches.add((await world.batch()).id)
  await world.pollFor(60_000)
  assert.deepEqual(new Set(await world.states()), new Set(['ended']))
})

test('a batch of an unknown batch API is left to a worker that knows it, and to that of a command if it answers the batch', async () => {
  await using world = await makeWorld({ knows: false })
  const { store, clock } = world
  const at = { in_flight: 0, concurrency: 1, concurrency_max: 1, lines_per_s: 0, errors_per_s: 0 }
  const upstream = {
    model: 'm',
    upstream: 'cell',
    circuit: 'closed',
    latency_ms: null,
    last_error: null,
  } as const
  const report = { open_chunks: 0, stores_failing: false, upstreams: [{ ...upstream, ...at }] }
  const other = await store.write((tx) => openSession(tx, 60 * MINUTE_MS, clock.now()))
  await store.write((tx) => setWorkerReport(tx, other, report, clock.now()))
  await world.pollFor(2 * MINUTE_MS)
  assert.deepEqual(new Set(await world.states()), new Set(['open']))
  const { id } = await world.batch()
  for (const [only_batches, state] of [
    [[id], 'open'],
    [[], 'ended'],
  ] as const) {
    const ofCommand = { ...report, only_batches: [...only_batches] }
    await store.write((tx) => setWorkerReport(tx, other, ofCommand, clock.now()))
    await world.pollFor(2 * MINUTE_MS)
    assert.deepEqual(new Set(await world.states()), new Set([state]))
  }
})

/** Chunks that are all at one batch API, which answers no batch but those in `ended`. */
async function makeWorld({ onlyBatches, knows = true }: { onlyBatches?: Set<string>; knows?: boolean } = {}) {
  const world = await queuedBatch({ chunks: CHUNKS, lines: 1 })
  const { clock, store } = world
  const ended = new Set<string>()
  const looks: string[] = []
  const cancelled: string[] = []
  let findsFrom = 0
  const api: Pick<BatchApi, 'read' | 'find' | 'cancel' | 'settleMs'> = {
    settleMs: SETTLE_MS,
    find: async () =>
      clock.now() < findsFrom ? [] : [await api.read('found')].filter((one) => one !== null),
    async cancel(id) {
      cancelled.push(id)
    },
    async read(id) {
      looks.push(id)
      const isEnded = ended.has(id)
      return {
        id,
        status: isEnded ? 'completed' : 'in_progress',
        isKnown: true,
        done: 0,
        ended: isEnded ? 'completed' : null,
        output_file_id: null,
        error_file_id: null,
        detail: null,
        isThrottled: false,
        blamed: null,
        refusesService: false,
        report: '{}',
      }
    },
  }
  const upstream = new BatchApiUpstream({
    name: 'cell',
    api: api as BatchApi,
    concurrency_max: 4,
    modelAlias: null,
  })
  for (const [i, chunk] of (await world.open()).entries()) {
    const id = newId('remote', clock.now())
    const { line } = chunk.lines[0]!
    const intent = { id, model: 'm', upstream: 'cell', created: clock.now(), line_count: 1, day: null }
    const open = { state: 'open' as const, remote_id: `there-${i}`, poll_at: clock.now() }
    await store.write(async (tx) => {
      await intendRemoteBatch(tx, chunk.claim, {
        ...intent,
        lines: [[line, line]],
        reservation: [],
        moved: [],
      })
      await changeRemoteBatch(tx, id, 'intended', { state: 'creating' })
      await changeRemoteBatch(tx, id, 'creating', open)
    })
  }
  const poller = new Poller({
    store,
    clock,
    log: SILENT,
    rows: {
      hasBatchApi: () => knows,
      upstreamOf: () => (knows ? upstream : undefined),
      mayGiveUp: (_row, _batch, since, isGone) => !knows || (isGone && clock.now() - since > 10 * MINUTE_MS),
      sawOpen() {},
      mayReplace: () => false,
    },
    turn: { push() {} },
    onlyBatches,
  })
  return {
    clock,
    store,
    set findsFrom(at: number) {
      findsFrom = at
    },
    ended,
    cancelled,
    /** All are given up; the ID of the first was never known. */
    async abandon(creating_at: number | null = null) {
      const rows = await store.read.selectFrom('remote_batches').selectAll().orderBy('id').execute()
      await store.write((tx) => changeRemoteBatch(tx, rows[0]!.id, 'open', { remote_id: null, creating_at }))
      for (const row of rows)
        await store.write((tx) =>
          settleRemoteBatch(tx, row, EPOCH, {
            ...{ state: 'abandoned', answered: 0, cost_nanos: 0 },
            poll_at: clock.now(),
          }),
        )
    },
    looks: () => Array.from({ length: CHUNKS }, (_, i) => looks.filter((id) => id === `there-${i}`).length),
    async pollFor(ms: number, everyMs = 1_000) {
      for (const until = clock.now() + ms; clock.now() < until; await clock.advance(everyMs))
        await poller.pollDue()
    },
    batch: world.batch,
    states: async () =>
      (await store.read.selectFrom('remote_batches').select('state').orderBy('id').execute()).map(
        ({ state }) => state,
      ),
    async [Symbol.asyncDispose]() {
      await poller.close()
      await world[Symbol.asyncDispose]()
    },
  }
}
