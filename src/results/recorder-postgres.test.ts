// The recorder with a stalling database: commits hang, and take effect after the recorder has timed out.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import { after, test } from 'node:test'
import { sql } from 'kysely'
import { Client } from 'pg'
import { testClock } from '../../test/fakes/clock.ts'
import { emptyPostgres } from '../../test/fakes/empty-postgres.ts'
import { type PostgresServer, postgresServer, withoutPostgres } from '../../test/fakes/postgres-server.ts'
import { memoryBlobs } from '../../test/simulation/memory-blobs.ts'
import { leasedChunks } from '../../test/support/test-books.ts'
import { writeLine } from '../../test/support/write-line.ts'
import { reconcile } from '../admin/reconcile.ts'
import { ResponseMemory } from '../backends/response-memory.ts'
import { masterKeyFromText } from '../blobs/master-key.ts'
import { sealBlobs } from '../blobs/sealed.ts'
import { lineRequestIdPrefix } from '../domain/ids.ts'
import { parkChunk } from '../store/chunks.ts'
import { postgresStore } from '../store/postgres/store.ts'
import { readRow } from '../store/rows.ts'
import type { Store, Writer } from '../store/store.ts'
import { ChunkResults } from './chunk-results.ts'
import { readChunkJournal } from './journal.ts'
import { Recorder } from './recorder.ts'

interface OpenChunk {
  results: ChunkResults
}

const FLUSH_MS = 100
const BLOB_FRESH_MS = 120_000
const LINES = 3

let server: PostgresServer
if (!withoutPostgres) {
  // A standby that is not connected: a synchronous commit waits for it until the wait is cancelled.
  server = await postgresServer({ settings: ['synchronous_standby_names=away', 'synchronous_commit=local'] })
  after(() => server[Symbol.asyncDispose]())
}

test('a commit that times out and takes effect during the next attempt counts once', {
  skip: withoutPostgres,
}, async () => {
  await using stage = await stalling()
  const { recorder, chunks, clock, store } = stage
  stage.stall = true
  for (const chunk of chunks) stage.record(chunk, [1])
  await stage.failsDuring(() => clock.advance(FLUSH_MS))
  // Its blobs are too old by now, so the next attempt writes them again under other keys.
  await clock.advance(2 * BLOB_FRESH_MS)
  await stage.someoneWaits()
  stage.stall = false
  await stage.allGoesOn(recorder.flush())

  for (const chunk of chunks) {
    const { batch_id, idx } = chunk.results.lease
    const row = await readRow(store.read, 'chunks', { batch_id, idx })
    assert.deepEqual([row?.state, row?.completed, row?.cost_nanos], ['leased', 1, 10])
    const { written } = await readChunkJournal({ db: store.read, sealed: stage.sealed }, { batch_id, idx })
    assert.deepEqual(
      written.map(({ line }) => line),
      [1],
    )
    stage.record(chunk, [2, 3])
  }
  await recorder.flush()
  assert.deepEqual(stage.closed, ['sealed', 'sealed'])
  const batch = await readRow(store.read, 'batches', { id: chunks[0]!.results.lease.batch_id })
  assert.deepEqual([batch?.completed, batch?.cost_nanos], [2 * LINES, 2 * LINES * 10])
  assert.deepEqual((await reconcile({ store, sealed: stage.sealed })).mismatches, [])
})

test('a park that times out and takes effect later leaves the chunk parked, not lost', {
  skip: withoutPostgres,
}, async () => {
  await using stage = await stalling()
  const { recorder, chunks } = stage
  stage.stall = true
  let parked: Promise<void> = Promise.resolve()
  await stage.failsDuring(async () => {
    parked = recorder.park(chunks[0]!, (tx, lease) => parkChunk(tx, lease, 0, 'usage_limit'))
  })
  stage.stall = false
  await stage.allGoesOn(parked)
  assert.deepEqual(stage.closed, ['parked'])
})

test('commits with an unknown outcome leak no connection', { skip: withoutPostgres }, async () => {
  await using stage = await stalling({ pool_max: 1 })
  stage.stall = true
  for (let round = 0; round < 2; round++) {
    await assert.rejects(stage.store.write((tx) => touch(tx, stage.chunks[0]!)))
    await stage.standbyIsBack()
  }
  stage.stall = false
  await stage.store.write((tx) => touch(tx, stage.chunks[0]!))
})

async function touch(tx: Writer, { results }: OpenChunk): Promise<void> {
  await tx.updateTable('batches').set({ rate_lines: 0 }).where('id', '=', results.lease.batch_id).execute()
}

/** A recorder with two open chunks of one batch, on a database whose commits hang while `stall` is set. */
async function stalling({ pool_max = 10 } = {}) {
  const database = await emptyPostgres(server)
  const options = `statement_timeout_ms=400&answer_extra_ms=1&pool_max=${pool_max}`
  const real = postgresStore({ url: `${database.url}?${options}`, patience_ms: 1 })
  const admin = new Client({ connectionString: database.url })
  await admin.connect()
  const clock = testClock()
  const sealed = sealBlobs(
    memoryBlobs(clock, () => 0),
    masterKeyFromText(randomBytes(32).toString('base64'), 'test'),
  )
  const failures = new EventEmitter()
  const stage = {
    stall: false,
    clock,
    sealed,
    closed: [] as string[],
    /** Resolves when an attempt has timed out. */
    async failsDuring(work: () => Promise<void>): Promise<void> {
      const failed = once(failures, 'failure')
      await work()
      await failed
    },
    someoneWaits: () => database.contention?.(),
    async standbyIsBack(): Promise<void> {
      const hanging = `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'SyncRep'`
      while (((await admin.query(hanging)).rowCount ?? 0) > 0) {
        // Queried repeatedly: each answer takes a round trip.
      }
    },
  }
  /** Cancels the wait for the standby and moves the clock, until the work is done. */
  const allGoesOn = async (work: Promise<void>): Promise<void> => {
    let done = false
    const end = work.finally(() => {
      done = true
    })
    while (!done) {
      await stage.standbyIsBack()
      await clock.advance(1_000)
    }
    await end
  }
  const store: Store = {
    ...real,
    write: (change) =>
      real.write(async (tx) => {
        if (stage.stall) await sql`SET LOCAL synchronous_commit = on`.execute(tx)
        return await change(tx)
      }),
  }
  const claims = await store.write((tx) => leasedChunks(tx, 2, clock.now()))
  const chunks: OpenChunk[] = []
  const recorder = new Recorder<OpenChunk>({
    store,
    sealed,
    clock,
    log: { info() {}, warn() {}, error: () => void failures.emit('failure') },
    rules: { file_retention_ms: () => 1_000 },
    flushIntervalMs: FLUSH_MS,
    answers: new ResponseMemory(1_000_000),
    blobFreshMs: BLOB_FRESH_MS,
    turn: { push: (recorded) => void (recorded.kind === 'closed' && stage.closed.push(recorded.how)) },
  })
  for (const { batch_id, idx } of claims) {
    const row = await readRow(store.read, 'chunks', { batch_id, idx })
    const lines = Array.from({ length: LINES }, (_, i) => ({ line: i + 1 }))
    const chunk = { results: new ChunkResults(row!, lines) }
    chunks.push(chunk)
    recorder.track(chunk)
  }
  return {
    ...stage,
    get stall() {
      return stage.stall
    },
    set stall(on: boolean) {
      stage.stall = on
    },
    allGoesOn,
    /** Records answers of lines of the chunk. */
    record(chunk: OpenChunk, lines: readonly number[]) {
      for (const line of lines) answer(chunk.results, line)
      recorder.recorded([chunk])
    },
    store,
    chunks,
    recorder,
    async [Symbol.asyncDispose]() {
      await admin.end()
      await real.close()
      await database[Symbol.asyncDispose]()
    },
  }
}

function answer(results: ChunkResults, line: number): void {
  const id = `${lineRequestIdPrefix(results.lease.batch_id)}${line}`
  const body = '{"usage":{"cost_usd":0.00000001}}'
  const audit = `{"id":"${id}","usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2},"cost_usd":0.00000001}`
  const result = `{"id":"${id}","custom_id":"${line}","response":{"body":${body}},"error":null}`
  writeLine(
    results,
    line - 1,
    { part: 'output', result: Buffer.from(`${result}\n`), audit: Buffer.from(`${audit}\n`) },
    {
      entity: 'user:a',
      usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
      cost_nanos: 10,
    },
  )
}
