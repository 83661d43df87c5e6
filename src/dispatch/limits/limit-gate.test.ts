import assert from 'node:assert/strict'
import { test } from 'node:test'
import { scriptedBackend } from '../../../test/fakes/scripted-backend.ts'
import { queuedBatch, RETRY, SILENT } from '../../../test/support/queued-batch.ts'
import { addLimit } from '../../../test/support/test-books.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Outcome } from '../../results/outcome.ts'
import { releaseChunk } from '../../store/chunks.ts'
import { reservedByProject } from '../../store/reservations.ts'
import { Sender } from '../send/sender.ts'
import { Upstream } from '../send/upstream.ts'
import { LimitGate } from './limit-gate.ts'
import { ReservedFunds } from './reserved-funds.ts'

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
  const { clock, store, models, project_id } = queued
  const chunks = await queued.open()
  const tokens = chunks[0]!.lines[0]!.projected.tokens
  if (roomFor !== undefined)
    await store.write((tx) => addLimit(tx, project_id, { amount: Math.floor(roomFor * tokens) }))
  const server = scriptedBackend()
  const open = new Set<OpenChunk>()
  const funds = new ReservedFunds()
  const world = {
    ...queued,
    chunks,
    sent: server.sent,
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
