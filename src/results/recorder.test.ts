import assert from 'node:assert/strict'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { parsedLines } from '../../test/support/api.ts'
import { endLines, queuedBatch } from '../../test/support/queued-batch.ts'
import { reconcile } from '../admin/reconcile.ts'
import { ResponseMemory } from '../backends/response-memory.ts'
import { BlobStoreFailed } from '../blobs/blobs.ts'
import type { Run } from '../dispatch/run.ts'
import { parkChunk, releaseChunk } from '../store/chunks.ts'
import { readRow } from '../store/rows.ts'
import { StatementRejected } from '../store/store.ts'
import { readChunkJournal } from './journal.ts'
import { readContent } from './read-content.ts'
import { Recorder } from './recorder.ts'

const FLUSH_MS = 1_000
const FRESH_MS = 120_000

test('a chunk is sealed at its last line, without a journal, and its results are in input order', async () => {
  await using world = await makeWorld({ lines: 3 })
  const [chunk] = world.chunks
  world.record(chunk!, [2, 0])
  assert.deepEqual(await world.journalled(chunk!), [])
  world.record(chunk!, [1], 'error')
  await world.recorder.flush()
  assert.deepEqual(world.closed, ['0 sealed'])
  assert.equal((await world.batch()).status, 'completed')
  assert.deepEqual(await world.output(), ['l1', 'l3'])
  assert.deepEqual(await world.mismatches(), [])
})

test('finished lines of an open chunk are journalled after the flush interval, those of all chunks at once', async () => {
  await using world = await makeWorld({ chunks: 2, lines: 2 })
  const [first, second] = world.chunks as [Run, Run]
  world.record(first, [0])
  await world.clock.advance(FLUSH_MS / 2)
  world.record(second, [0])
  await world.clock.advance(FLUSH_MS / 2 - 1)
  assert.ok(first.results.hasFresh, 'no journal has taken the line')
  await world.clock.advance(1)
  await world.until(() => world.settled.length === 2)
  assert.deepEqual(world.settled, ['0: 1', '1: 3'])
  assert.deepEqual(await world.journalled(first), [1])
  assert.deepEqual(await world.journalled(second), [3])
  assert.equal(world.journals.length, 1)
})

test('a flush also commits lines that finish while it writes a journal', async () => {
  await using world = await makeWorld({ lines: 3 })
  const [chunk] = world.chunks
  world.record(chunk!, [0])
  const flushed = world.recorder.flush()
  world.record(chunk!, [1])
  await flushed
  assert.deepEqual(world.settled, ['0: 1', '0: 2'])
})

test('a chunk whose worker crashed after a journal is continued by the next worker', async () => {
  await using world = await makeWorld({ lines: 2 })
  const [chunk] = world.chunks
  world.record(chunk!, [1])
  await world.recorder.flush()
  world.recorder.untrack(chunk!)
  await world.store.write((tx) => releaseChunk(tx, chunk!.claim))

  const [again] = await world.open()
  assert.deepEqual(again!.positions(), [0])
  world.recorder.track(again!)
  world.record(again!, [0])
  await world.recorder.flush()
  assert.deepEqual(await world.output(), ['l1', 'l2'])
  assert.deepEqual(await world.mismatches(), [])
})

test('a line that was finished under a lost lease is not counted', async () => {
  await using world = await makeWorld({ lines: 1 })
  const [chunk] = world.chunks
  await world.store.write((tx) => releaseChunk(tx, chunk!.claim))
  const [again] = await world.open()
  world.record(chunk!, [0])
  await world.recorder.flush()
  assert.deepEqual(world.closed, ['0 lost'])
  assert.equal((await world.batch()).completed, 0)
  world.recorder.track(again!)
  world.record(again!, [0])
  await world.recorder.flush()
  assert.equal((await world.batch()).completed, 1)
})

test('a line is settled once although the blob store failed, and then the database', async () => {
  await using world = await makeWorld({ lines: 1 })
  const [chunk] = world.chunks
  world.fail = 'blobs'
  world.record(chunk!, [0])
  await world.until(() => world.recorder.failingSince !== null)
  world.fail = 'commits'
  await world.until(() => world.refused > 1, 100)
  assert.deepEqual(world.settled, [])
  world.fail = null
  await world.until(() => world.closed.length > 0, 100)
  assert.equal(world.recorder.failingSince, null)
  assert.deepEqual(world.settled, ['0: 1'])
  assert.equal((await world.batch()).completed, 1)
  assert.deepEqual(await world.mismatches(), [])
})

test('a parked chunk keeps its finished lines', async () => {
  await using world = await makeWorld({ lines: 2 })
  const [chunk] = world.chunks
  world.record(chunk!, [0])
  await world.recorder.park(chunk!, (tx, lease) => parkChunk(tx, lease, 5_000, 'usage_limit'))
  assert.deepEqual(world.closed, ['0 parked'])
  const [row] = await world.rows()
  assert.deepEqual([row?.state, row?.parked_reason, row?.completed], ['parked', 'usage_limit', 1])
  assert.deepEqual(await world.journalled(chunk!), [1])
})

test('a flush waits for a chunk that is being parked', async () => {
  await using world = await makeWorld({ lines: 2 })
  const [chunk] = world.chunks
  world.fail = 'commits'
  void world.recorder.park(chunk!, (tx, lease) => parkChunk(tx, lease, 5_000, 'usage_limit'))
  const flushed = world.recorder.flush().then(() => world.closed.push('flushed'))
  await world.until(() => world.refused > 1, 100)
  world.fail = null
  await world.until(() => world.closed.length > 1, 100)
  await flushed
  assert.deepEqual(world.closed, ['0 parked', 'flushed'])
})

test('a flush also commits lines that ended in the same turn', async () => {
  await using world = await makeWorld({ lines: 1 })
  endLines(world.chunks[0]!, [0])
  await world.recorder.flush()
  assert.deepEqual([world.closed, (await world.batch()).completed], [['0 sealed'], 1])
})

test('a chunk whose last line ends while it is being parked is sealed, and counts all of its lines', async () => {
  await using world = await makeWorld({ lines: 2 })
  const [chunk] = world.chunks
  world.record(chunk!, [0])
  const parked = world.recorder.park(chunk!, (tx, lease) => parkChunk(tx, lease, 5_000, 'paused'))
  world.record(chunk!, [1])
  await world.until(() => world.closed.length > 0, 100)
  await parked
  assert.deepEqual(world.closed, ['0 sealed'])
  assert.equal(world.journals.length, 1, 'the seal counts the last line, and no journal')
  assert.equal((await world.batch()).completed, 2)
  assert.deepEqual(await world.mismatches(), [])
})

test('blobs that wait for their commit are written again in time, although the system time was set back', async () => {
  await using world = await makeWorld({ lines: 1 })
  const [chunk] = world.chunks
  world.fail = 'commits'
  world.record(chunk!, [0])
  await world.until(() => world.refused > 0, 100)
  const seals = async (): Promise<number> => {
    let count = 0
    for await (const { key } of world.blobs.list('batches/')) if (key.endsWith('-output')) count++
    return count
  }
  assert.equal(await seals(), 1)
  for (let at = world.clock.now(); world.clock.now() < at + FRESH_MS / 2; ) await world.clock.advance(1_000)
  assert.equal(await seals(), 1)
  world.setBackMs = FRESH_MS / 2
  const { refused } = world
  await world.until(() => world.refused > refused, 100)
  assert.equal(await seals(), 2)
})

test('a chunk whose results the database rejects is requeued with the reason, and blocks no other chunk', async () => {
  await using world = await makeWorld({ chunks: 2, lines: 1 })
  const [bad, good] = world.chunks as [Run, Run]
  world.rejected = bad.claim.idx
  for (const chunk of [bad, good]) world.record(chunk, [0])
  await world.until(() => world.closed.length === 2, 100)
  assert.deepEqual(world.closed.sort(), ['0 parked', '1 sealed'])
  const [row] = await world.rows()
  assert.deepEqual(
    [row?.state, row?.record_error],
    ['ready', 'the database refuses a statement: value too long'],
  )
})

test('chunks whose results cannot be recorded for an unexpected reason are given up, and later ones are recorded', async () => {
  await using world = await makeWorld({ chunks: 3, lines: 2 })
  const [journalled, sealed, later] = world.chunks as [Run, Run, Run]
  world.observerFails = true
  world.record(journalled, [0])
  world.record(sealed, [0, 1])
  await world.recorder.flush()
  assert.deepEqual(world.closed.sort(), ['0 lost', '1 lost'])
  world.observerFails = false
  world.record(later, [0, 1])
  await world.recorder.flush()
  assert.equal(world.closed.at(-1), '2 sealed')
})

/** A recorder with the open chunks of one batch. */
async function makeWorld({ chunks = 1, lines }: { chunks?: number; lines: number }) {
  const queued = await queuedBatch({ chunks, lines })
  const { store, sealed, blobs, clock } = queued
  const world = {
    ...queued,
    rows: queued.chunks,
    chunks: await queued.open(),
    closed: [] as string[],
    settled: [] as string[],
    /** Keys of journals that were written. */
    journals: [] as string[],
    /** The time by which the system time was set back. */
    setBackMs: 0,
    fail: null as 'blobs' | 'commits' | null,
    /** The number of failed transactions. */
    refused: 0,
    observerFails: false,
    /** The index of the chunk whose results the database rejects. */
    rejected: null as number | null,
    journalled: async ({ claim }: Run): Promise<number[]> =>
      (await readChunkJournal({ db: store.read, sealed }, claim)).written.map(({ line }) => line),
    /** The custom_ids of the output file. */
    async output(): Promise<string[]> {
      const { output_file_id } = await queued.batch()
      const file = (await readRow(store.read, 'files', { id: output_file_id! }))!
      const content = readContent({ db: store.read, sealed }, file, { start: 0, end: file.bytes })
      return parsedLines<{ custom_id: string }>(await text(content)).map(({ custom_id }) => custom_id)
    },
    mismatches: async () => (await reconcile({ store, sealed })).mismatches,
  }
  const put = blobs.put
  blobs.put = async (key, source) => {
    if (world.fail === 'blobs') throw new BlobStoreFailed('writing', new Error('the disk is full'))
    const bytes = await put(key, source)
    if (key.includes('journals/')) world.journals.push(key)
    return bytes
  }
  const recorder = new Recorder<Run>({
    store: {
      ...store,
      write: async (change) => {
        if (world.fail === 'commits') {
          world.refused++
          throw new Error('the database is unavailable')
        }
        return await store.write(async (tx) => {
          const before = await queued.chunks()
          const result = await change(tx)
          const { rejected } = world
          if (rejected === null) return result
          const row = await tx
            .selectFrom('chunks')
            .select('completed')
            .where('idx', '=', rejected)
            .executeTakeFirstOrThrow()
          if (row.completed > before[rejected]!.completed)
            throw new StatementRejected(new Error('value too long'))
          return result
        })
      },
    },
    sealed,
    clock: { ...clock, steady: () => clock.now() + world.setBackMs },
    log: { info() {}, warn() {}, error() {} },
    rules: { file_retention_ms: () => 1e9 },
    flushIntervalMs: FLUSH_MS,
    answers: new ResponseMemory(1_000_000),
    blobFreshMs: FRESH_MS,
    observe: {
      recorded() {},
      committed() {
        if (world.observerFails) throw new Error('it cannot be measured')
      },
    },
    turn: {
      push(recorded) {
        if (recorded.kind === 'closed') world.closed.push(`${recorded.run.claim.idx} ${recorded.how}`)
        if (recorded.kind !== 'settled') return
        const { run, fresh } = recorded
        world.settled.push(
          `${run.claim.idx}: ${fresh.positions.map((position) => run.lines[position]!.line)}`,
        )
      },
    },
  })
  for (const chunk of world.chunks) recorder.track(chunk)
  return Object.assign(world, {
    recorder,
    /** Ends lines of a chunk. */
    record(run: Run, positions: readonly number[], part?: 'error') {
      endLines(run, positions, part)
      recorder.recorded([run])
    },
  })
}
