// A database that has seen much: chunk rows for a hundred million lines and more, most of them sealed, and one
// batch of ten million lines that stands still. How long claims, commits, status calls and lists take against it,
// as the percentiles of each statement or transaction, round trips included.
//
//   node bench/many-chunks.ts [--database postgres|sqlite] [--chunks 100000] [--batches 400] [--projects 50] [--rounds 400]
import { join } from 'node:path'
import { sql } from 'kysely'
import { newId } from '../src/domain/ids.ts'
import { readBatchProgress } from '../src/progress/waiting-reason.ts'
import { listBatches } from '../src/store/batches.ts'
import { claimChunks, hasReadyChunk } from '../src/store/chunk-claims.ts'
import { chunksOf, commitChunk, firstUnsealed, readChunkOfLine, releaseChunk } from '../src/store/chunks.ts'
import { postgresStore } from '../src/store/postgres/store.ts'
import { readOwn } from '../src/store/rows.ts'
import type { BatchRow } from '../src/store/schema.ts'
import { sqliteStore } from '../src/store/sqlite/store.ts'
import type { Store, Writer } from '../src/store/store.ts'
import { maintenanceDue } from '../src/store/tasks.ts'
import { openSession } from '../src/store/workers.ts'
import { postgresServer } from '../test/fakes/postgres-server.ts'
import { Bench, option, quantile, rounded } from './harness.ts'

const database = option('database', 'postgres')
const chunks = option('chunks', 100_000)
const batches = option('batches', 400)
const projects = option('projects', 50)
const rounds = option('rounds', 400)
await using bench = new Bench('many-chunks')
/** Chunks of the batch that stands still. */
const GIANT = 10_000
const now = Date.now()
const store = await (database === 'sqlite' ? openSqlite() : openPostgres())
bench.defer(() => store.close())
await store.migrate()
const giant = await fill()

const worker_id = await store.write((tx) => openSession(tx, 600_000, now))
const some = (await store.read.selectFrom('batches').select(['id', 'project_id']).execute()).filter(
  ({ id }) => id !== giant.id,
)
const any = () => some[Math.floor(Math.random() * some.length)]!
const held = await store.write((tx) => claimChunks(tx, { worker_id, urgentBefore: 0, count: rounds }))

const table = {
  'claim of 4 chunks (transaction)': await measure(
    () => store.write((tx) => claimChunks(tx, { worker_id, urgentBefore: now, count: 4 })),
    (claims) =>
      store.write(async (tx) => {
        for (const claim of claims) await releaseChunk(tx, claim)
      }),
  ),
  'whether anything is ready': await measure(() => hasReadyChunk(store.read)),
  'commit to a chunk (transaction)': await measure((round) =>
    store.write((tx) => commitChunk(tx, held[round]!, { completed: 1, failed: 0, cost_nanos: 5 }, null, now)),
  ),
  'status of a batch of 10 million lines that stands still, and why it does': await measure(() =>
    readBatchProgress(store, [giant], now, new Map()),
  ),
  'the first unfinished chunk of that batch': await measure(() => firstUnsealed(store.read, giant.id)),
  'whether maintenance is due': await measure(() => maintenanceDue(store.read, now)),
  'status of a batch': await measure(() => readOwn(store.read, 'batches', any().project_id, any().id)),
  'list of batches, 100': await measure(() => listBatches(store.read, any().project_id, { limit: 100 })),
  'list of batches by status': await measure(() =>
    listBatches(store.read, any().project_id, { limit: 20, status: 'in_progress' }),
  ),
  'chunk of a line': await measure(() => readChunkOfLine(store.read, any().id, 77_000)),
  'page of chunks, 200': await measure(() => chunksOf(store.read, any().id).next()),
}
console.table(table)
for (const [what, { p99_ms }] of Object.entries(table)) bench.figure(`${what}, ${database}, p99 ms`, p99_ms)

/** Measures `work`, without `undo`. */
async function measure<T>(work: (round: number) => Promise<T>, undo?: (done: T) => Promise<void>) {
  const times: number[] = []
  for (let round = 0; round < rounds; round++) {
    const begun = performance.now()
    const done = await work(round)
    times.push(performance.now() - begun)
    await undo?.(done)
  }
  return { p50_ms: rounded(quantile(times, 0.5)), p99_ms: rounded(quantile(times, 0.99)) }
}

async function openPostgres(): Promise<Store> {
  const server = await postgresServer({ fsync: true, settings: ['shared_buffers=256MB'] })
  bench.defer(() => server[Symbol.asyncDispose]())
  return postgresStore({ url: await server.database() })
}

async function openSqlite(): Promise<Store> {
  return sqliteStore({ path: join(bench.folder, 'offpeak.db') })
}

/** Written by the database itself: nine chunks of ten are sealed, the last one is ready. Returns the giant. */
async function fill(): Promise<BatchRow> {
  const perBatch = Math.ceil(chunks / batches)
  const ids = Array.from({ length: batches }, () => newId('batch', now))
  const giant = newId('batch', now)
  const projectOf = (i: number): string => `proj_${String((i % projects) + 1).padStart(6, '0')}`
  await store.write(async (tx) => {
    for (let i = 0; i < projects; i++) {
      const id = projectOf(i)
      await tx.insertInto('projects').values({ id, name: id, plan: 'payg', created: 1 }).execute()
      await sql`INSERT INTO files (id, project_id, purpose, filename, bytes, line_count, status, created, expires_at)
        VALUES (${`file_${id}`}, ${id}, 'batch', 'in.jsonl', 1, 1, 'processed', 1, ${1e15})`.execute(tx)
    }
    for (const [i, id] of ids.entries()) await fillBatch(tx, id, projectOf(i), perBatch, 'ready')
    // Its chunks wait for a model, so no claim sees them.
    await fillBatch(tx, giant, projectOf(0), GIANT, 'parked')
  })
  if (database === 'postgres') await store.write((tx) => sql`ANALYZE`.execute(tx))
  const row = await store.read.selectFrom('batches').selectAll().where('id', '=', giant).executeTakeFirst()
  if (!row) throw new Error('the giant is gone')
  return row
}

async function fillBatch(
  tx: Writer,
  id: string,
  project: string,
  count: number,
  last: 'ready' | 'parked',
): Promise<void> {
  const ends = now + 86_400_000
  await sql`INSERT INTO batches (id, project_id, key_id, status, endpoint, input_file_id, completion_window, total, chunk_count, created, expires_at)
    VALUES (${id}, ${project}, 'key_1', 'in_progress', '/v1/chat/completions', ${`file_${project}`}, '24h', ${count * 1000}, ${count}, ${now}, ${ends})`.execute(
    tx,
  )
  await sql`WITH RECURSIVE series(c) AS (SELECT CAST(0 AS bigint) UNION ALL SELECT c + 1 FROM series WHERE c < ${sql.lit(count - 1)})
    INSERT INTO chunks (batch_id, idx, project_id, state, run_at, deadline, first_line, line_count, byte_start, byte_end, output_blob, output_bytes, audit_blob)
    SELECT ${sql.lit(id)}, c, ${sql.lit(project)}, CASE WHEN c % 10 = 9 THEN ${sql.lit(last)} ELSE 'sealed' END, ${sql.lit(ends)}, ${sql.lit(ends)},
      c * 1000 + 1, 1000, c * 1000000, c * 1000000 + 1000000,
      'batches/' || ${sql.lit(id)} || '/' || c || '-output', 2000000, 'batches/' || ${sql.lit(id)} || '/' || c || '-audit'
    FROM series`.execute(tx)
}
