import assert from 'node:assert/strict'
import { test } from 'node:test'
import { queuedBatch, SILENT } from '../../../../test/support/queued-batch.ts'
import { remoteRows } from '../../../../test/support/remote-rows.ts'
import type { BatchApi, SeenBatch } from '../../../backends/batch-api/batch-api.ts'
import { BatchApiError, UndecidedBatch } from '../../../backends/batch-api/batch-api.ts'
import { unfinished } from '../../../backends/batch-api/result-line.ts'
import { wireError } from '../../../domain/errors.ts'
import { REMOTE, UNSUBMITTED } from '../../line-state.ts'
import type { Run } from '../../run.ts'
import type { BatchApiUpstream } from './batch-api-upstream.ts'
import { Creations } from './creation.ts'
import { recallAt } from './deadline.ts'

test('of two batches that a batch API made of one call the second is cancelled', async () => {
  await using world = await makeWorld()
  const { run, row, creations, creation } = world
  assert.deepEqual((await creations.pursue({ ...creation, isNew: true })).kind, 'later')
  world.there.push('first', 'second')
  assert.deepEqual(await creations.pursue(creation), { kind: 'open' })
  assert.deepEqual([row.remote_id, world.created], ['first', 1])
  assert.deepEqual(world.cancelled, ['second'])
  assert.equal(run.count(REMOTE), 1)
})

test('a batch that may still come into being is created again only when the batch API has settled', async () => {
  await using world = await makeWorld()
  const { creations, creation, api, clock } = world
  await creations.pursue({ ...creation, isNew: true })
  await clock.advance(api.settleMs - 1)
  assert.equal((await creations.pursue(creation)).kind, 'later')
  assert.equal(world.created, 1)
  await clock.advance(1)
  await creations.pursue(creation)
  assert.equal(world.created, 2)
})

test('a batch that may be one of several is not created again, and waited for like any that is there', async () => {
  await using world = await makeWorld()
  const { creations, creation, api, run, clock } = world
  await creations.pursue({ ...creation, isNew: true })
  world.isUndecided = true
  world.mayGiveUp = (since) => clock.now() >= since
  await clock.advance(2 * api.settleMs)
  assert.equal((await creations.pursue(creation)).kind, 'later')
  await clock.advance(recallAt(run.batch) - clock.now() - 1)
  assert.equal((await creations.pursue(creation)).kind, 'later')
  await clock.advance(1)
  const end = await creations.pursue(creation)
  assert.ok(end.kind === 'returned' && end.left === 'batch')
  assert.equal(world.created, 1)
})

test('a batch of which nobody knows whether it was created is waited for no longer than until its deadline', async () => {
  await using world = await makeWorld()
  const { creations, creation } = world
  await creations.pursue({ ...creation, isNew: true })
  world.isUndecided = true
  assert.equal((await creations.pursue(creation)).kind, 'later')
  world.isOver = true
  const end = await creations.pursue(creation)
  assert.ok(end.kind === 'returned' && end.left === 'batch')
})

for (const isListed of [true, false])
  test(`a batch whose endpoint is not declared any more is not created again (${isListed ? '' : 'not '}listed)`, async () => {
    await using world = await makeWorld()
    const { creations, creation, api, clock, run } = world
    await creations.pursue({ ...creation, isNew: true })
    world.isListed = isListed
    Object.assign(run.lines[0]!, { fault: wireError('endpoint_not_supported') })
    await clock.advance(api.settleMs)
    const end = await creations.pursue(creation)
    assert.equal(end.kind === 'returned' ? end.left : end.kind, isListed ? 'unsent' : 'batch')
    assert.equal(world.created, 1)
    world.there.push('first')
    assert.deepEqual((await creations.pursue(creation)).kind, isListed ? 'open' : 'returned')
  })

test('nothing is created at a batch API while it is not certain that the lease holds', async () => {
  await using world = await makeWorld()
  const { creations, creation } = world
  world.isCertain = false
  assert.equal((await creations.pursue({ ...creation, isNew: true })).kind, 'later')
  assert.equal(world.created, 0)
})

/** A batch that is to be created at a batch API, which never answers that it was. */
async function makeWorld() {
  const world = await queuedBatch({ chunks: 1, lines: 1 })
  const { store, clock } = world
  const rows = remoteRows(world)
  const [run] = (await world.open()) as [Run]
  for (const state of [UNSUBMITTED, REMOTE]) run.move(0, state, 'it is handed over')
  const row = (await rows.intend(run, { name: 'cell' } as BatchApiUpstream, [0]))!
  const known = {
    there: [] as string[],
    cancelled: [] as string[],
    created: 0,
    isUndecided: false,
    isListed: true,
    isOver: false,
    isCertain: true,
    mayGiveUp: (_since: number) => false,
  }
  const api: Pick<BatchApi, 'settleMs' | 'upload' | 'create' | 'find' | 'cancel'> = {
    settleMs: 1_000,
    upload: async () => 'file',
    async create() {
      known.created++
      throw new BatchApiError(unfinished('no answer'), false)
    },
    async find() {
      if (known.isUndecided) throw new UndecidedBatch(unfinished('one of several'), false)
      if (!known.isListed) return null
      return known.there.map((id) => ({ id }) as SeenBatch)
    },
    async cancel(id) {
      known.cancelled.push(id)
    },
  }
  const creations = new Creations({
    ...{ store, clock },
    log: SILENT,
    session: known,
    pauses: { covers: () => false },
    limits: { isOver: async () => false },
    rows: { mayGiveUp: (_row, _window, since) => known.mayGiveUp(since) },
  })
  const creation = {
    ...{ run, row },
    isNew: false,
    positions: [0],
    upstream: { api: api as BatchApi, modelJson: null, operatorFields: null },
    until: { signal: new AbortController().signal, isOver: () => known.isOver },
  }
  return Object.assign(
    known,
    { run, row, creations, creation, api, clock },
    {
      [Symbol.asyncDispose]: () => world[Symbol.asyncDispose](),
    },
  )
}
