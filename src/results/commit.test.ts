import assert from 'node:assert/strict'
import { test } from 'node:test'
import { endLines, queuedBatch } from '../../test/support/queued-batch.ts'
import { total } from '../../test/support/test-books.ts'
import type { Run } from '../dispatch/run.ts'
import { newId } from '../domain/ids.ts'
import { windowAt } from '../domain/limit.ts'
import { listJournalParts, releaseChunk } from '../store/chunks.ts'
import { amountsByKey, insertProjectedSpend } from '../store/ledger.ts'
import { intendRemoteBatch } from '../store/remote-batches.ts'
import type { Writer } from '../store/store.ts'
import { type ChunkCommit, type Committed, commitChunks, type RunCommit, reverseJournal } from './commit.ts'
import { JOURNAL_OWNER } from './journal.ts'
import { sealChunk } from './seal.ts'

const RULES = { file_retention_ms: () => 1_000 }

test('a commit counts its lines in the chunk, the batch and the spend of the project', async () => {
  await using world = await makeWorld(1)
  const [chunk] = world.chunks
  await world.commit([await world.journal(chunk!, 0)])
  assert.deepEqual(await world.counts(), { chunk: 1, batch: 1, spent: 5_000 })
  assert.equal((await listJournalParts(world.store.read, chunk!.batch.id, 0)).length, 1)
})

test('a repeated commit changes nothing and is reported', async () => {
  await using world = await makeWorld(1)
  const commit = await world.journal(world.chunks[0]!, 0)
  await world.commit([commit])
  const again = await world.commit([commit])
  assert.deepEqual(again.repeated, [commit])
  assert.deepEqual(await world.counts(), { chunk: 1, batch: 1, spent: 5_000 })
})

test('a commit under a lost lease changes nothing, and the others of its group take effect', async () => {
  await using world = await makeWorld(2)
  const [lost, kept] = world.chunks as [Run, Run]
  await world.store.write((tx) => releaseChunk(tx, lost.claim))
  const late = await world.journal(lost, 0)
  const { lost: found } = await world.commit([late, await world.journal(kept, 0)])
  assert.deepEqual(found, [late])
  const [first, second] = await world.rows()
  assert.deepEqual([first?.completed, second?.completed], [0, 1])
  assert.deepEqual(await world.counts(), { chunk: 0, batch: 1, spent: 5_000 })
  assert.deepEqual(await listJournalParts(world.store.read, lost.batch.id, 0), [])
})

test('the commit that seals the last chunk ends the batch and drops the journals', async () => {
  await using world = await makeWorld(2)
  const [first, second] = world.chunks as [Run, Run]
  await world.commit([await world.journal(first, 0)])
  first.results.commitSeq++
  assert.deepEqual((await world.commit([await world.seal(second, 0, 1)])).ended, [])
  const { ended } = await world.commit([await world.seal(first, 1)])
  assert.equal(ended[0]?.status, 'completed')
  const batch = await world.batch()
  assert.deepEqual([batch.status, batch.completed, batch.chunks_sealed], ['completed', 4, 2])
  assert.notEqual(batch.output_file_id, null)
  assert.deepEqual(await listJournalParts(world.store.read, first.batch.id, 0), [])
})

test('the commit that seals a chunk gives up what batch APIs may have of it, and releases what that has reserved', async () => {
  await using world = await makeWorld(1)
  const { store, clock } = world
  const { claim } = world.chunks[0]!
  const intent = {
    id: newId('remote', clock.now()),
    model: 'm',
    upstream: 'cell',
    created: clock.now(),
    day: null,
  }
  await store.write(async (tx) => {
    const reservation: [null, number, number, number][] = [[null, 1_000, 10, 1]]
    await intendRemoteBatch(tx, claim, { ...intent, line_count: 1, lines: [[1, 1]], reservation, moved: [] })
    await releaseChunk(tx, claim)
  })
  const [again] = await world.open()
  const { ended } = await world.commit([await world.seal(again!, 0, 1)])
  assert.equal(ended[0]?.status, 'completed')
  const row = await store.read.selectFrom('remote_batches').selectAll().executeTakeFirstOrThrow()
  assert.deepEqual([row.state, row.reserved, row.poll_at], ['abandoned', null, clock.now()])
  assert.deepEqual((await world.rows())[0]?.remote_batches, 0)
  assert.deepEqual(await store.read.selectFrom('reservations').selectAll().execute(), [])
})

test('a journal that is lost leaves nothing of its lines in the books, and the others keep theirs', async () => {
  await using world = await makeWorld(1, 5)
  const [run] = world.chunks as [Run]
  const { id, project_id } = run.batch
  const projected = { cost_nanos: 1_000_000, tokens: 1_000, requests: 10 }
  const { known_model } = run.lines[0]!
  const row = { batch_id: id, project_id, key_id: run.batch.key_id, entity: '', model: known_model ?? '' }
  await world.store.write((tx) => insertProjectedSpend(tx, [{ ...row, ...projected }]))
  await world.commit([await world.journal(run, 0)])
  const before = await world.books()
  run.results.commitSeq++
  // The next commit is a sample of the rate.
  await world.clock.advance(10_000)
  endLines(run, [1], 'error')
  endLines(run, [2], 'error', 'batch_expired')
  await world.commit([await world.journal(run, 3)])
  const { batch: counted, projected: open } = await world.books()
  const line = run.lines[0]!.projected
  const left = [projected.cost_nanos - 4 * line.cost_nanos, projected.tokens - 4 * line.tokens, 6]
  assert.deepEqual([open[0]?.cost_nanos, open[0]?.tokens, open[0]?.requests], left)
  assert.deepEqual([counted.completed, counted.failed, counted.expired_lines], [2, 2, 1])
  const [, part] = await listJournalParts(world.store.read, id, 0)
  const claim = (await world.rows())[0]!
  const reversed = await world.store.write((tx) => reverseJournal(tx, claim, [part!], world.clock.now()))
  assert.deepEqual(await world.books(), before)
  assert.deepEqual(reversed, { ...(await world.rows())[0]! })
})

test('a transaction that fails after the commits leaves nothing of them', async () => {
  await using world = await makeWorld(1)
  const commit = await world.journal(world.chunks[0]!, 0)
  const crash = async (tx: Writer): Promise<never> => {
    await commitChunks(tx, [commit], RULES, world.clock.now())
    throw new Error('the process crashed')
  }
  await assert.rejects(world.store.write(crash), /crashed/)
  assert.deepEqual(await world.counts(), { chunk: 0, batch: 0, spent: 0 })
})

/** A batch whose chunks are leased by one worker. */
async function makeWorld(count: number, lines = 2) {
  const queued = await queuedBatch({ chunks: count, lines })
  const { store, sealed, clock, project_id } = queued
  const commitOf = (chunk: Run): Omit<RunCommit, 'record'> => ({
    claim: chunk.results.lease,
    begunAt: clock.now(),
    fresh: chunk.results.takeFresh(),
    hasReservations: false,
  })
  return {
    ...queued,
    chunks: await queued.open(),
    rows: queued.chunks,
    commit: (commits: ChunkCommit[]): Promise<Committed> =>
      store.write((tx) => commitChunks(tx, commits, RULES, clock.now())),
    /** Finishes lines that are in a journal. */
    async journal(chunk: Run, ...positions: number[]): Promise<ChunkCommit> {
      endLines(chunk, positions)
      const commit = commitOf(chunk)
      const key = `journals/${chunk.claim.idx}/${chunk.results.commitSeq}`
      const journal = await sealed.put(JOURNAL_OWNER, key, chunk.results.entriesOf(commit.fresh.positions))
      return { ...commit, record: { journal, byte_start: 0, byte_end: commit.fresh.bytes } }
    },
    /** Finishes the last lines of a chunk and seals it. */
    async seal(chunk: Run, ...positions: number[]): Promise<ChunkCommit> {
      endLines(chunk, positions)
      const journalled = chunk.results.commitSeq > chunk.claim.commit_seq
      const written = await sealChunk(sealed, chunk.claim, 'test', chunk.results)
      return { ...commitOf(chunk), record: { sealed: written, journalled } }
    },
    /** The sums that commits count, without times and rates. */
    async books() {
      const { rate_sampled_at, lines_per_s, speed, ...batch } = await queued.batch()
      const chunks = (await queued.chunks()).map(({ commit_seq, ...chunk }) => chunk)
      const all = <T extends 'usage_days' | 'project_days' | 'batch_statistics'>(table: T) =>
        store.read.selectFrom(table).selectAll().execute()
      const entries = await store.read.selectFrom('ledger_entries').selectAll().execute()
      const sum = (of: (entry: (typeof entries)[number]) => number): number =>
        entries.reduce((total, entry) => total + of(entry), 0)
      return {
        ...{ batch, chunks, parts: await store.read.selectFrom('journal_parts').selectAll().execute() },
        projected: await store.read.selectFrom('batch_projected_spend').selectAll().execute(),
        usage: await all('usage_days'),
        days: await all('project_days'),
        statistics: await all('batch_statistics'),
        ledger: [sum(({ lines }) => lines), sum(({ tokens }) => tokens), sum(({ cost_nanos }) => cost_nanos)],
      }
    },
    async counts() {
      const [row] = await queued.chunks()
      const { completed } = await queued.batch()
      const today = windowAt('month', clock.now())
      const { cost_nanos } = total(await amountsByKey(store.read, 'project_days', project_id, today))
      return { chunk: row?.completed, batch: completed, spent: cost_nanos }
    },
  }
}
