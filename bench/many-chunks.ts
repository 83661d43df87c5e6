// A PostgreSQL that has seen much: chunk rows for a hundred million lines and more, most of them sealed. How
// long claims, commits, status calls and lists take against it, as the percentiles of each statement or
// transaction, round trips included.
//
//   node bench/many-chunks.ts [--chunks 100000] [--batches 400] [--projects 50] [--rounds 400]
import { parseArgs } from 'node:util'
import { sql } from 'kysely'
import { newId } from '../src/domain/ids.ts'
import { listBatches, readBatch } from '../src/store/batches.ts'
import { claimChunks, hasReadyChunk } from '../src/store/chunk-claims.ts'
import { commitChunk, listSealed, readChunkOfLine, releaseChunk } from '../src/store/chunks.ts'
import { openSession } from '../src/store/leases.ts'
import { postgresStore } from '../src/store/postgres/store.ts'
import { postgresServer } from '../test/fakes/postgres-server.ts'

const { values } = parseArgs({
  options: {
    chunks: { type: 'string', default: '100000' },
    batches: { type: 'string', default: '400' },
    projects: { type: 'string', default: '50' },
    rounds: { type: 'string', default: '400' },
  },
})
const [chunks, batches, projects, rounds] = [
  Number(values.chunks),
  Number(values.batches),
  Number(values.projects),
  Number(values.rounds),
]
await using server = await postgresServer({ fsync: true, settings: ['shared_buffers=256MB'] })
const store = postgresStore({ url: await server.database() })
await store.migrate()
const now = Date.now()
await fill()

const worker_id = await store.write((tx) => openSession(tx, store.claimSql, 600_000, now))
const some = await store.read.selectFrom('batches').select(['id', 'project_id']).execute()
const any = () => some[Math.floor(Math.random() * some.length)]!
const held = await store.write((tx) => claimChunks(tx, { worker_id, urgent_before: 0, count: rounds }))

const table: Record<string, object> = {
  'claim of 4 chunks (transaction)': await measure(
    () => store.write((tx) => claimChunks(tx, { worker_id, urgent_before: now, count: 4 })),
    (claims) =>
      store.write(async (tx) => {
        for (const claim of claims) await releaseChunk(tx, claim)
      }),
  ),
  'whether anything is ready': await measure(() => hasReadyChunk(store.read)),
  'commit to a chunk (transaction)': await measure((round) =>
    store.write((tx) => commitChunk(tx, held[round]!, { completed: 1, failed: 0, cost_nanos: 5 }, null)),
  ),
  'status of a batch': await measure(() => readBatch(store.read, any().project_id, any().id)),
  'list of batches, 100': await measure(() => listBatches(store.read, any().project_id, { limit: 100 })),
  'list of batches by status': await measure(() =>
    listBatches(store.read, any().project_id, { limit: 20, status: 'in_progress' }),
  ),
  'chunk of a line': await measure(() => readChunkOfLine(store.read, any().id, 77_000)),
  'page of sealed chunks, 200': await measure(() => listSealed(store.read, any().id, 0, 200)),
}
console.table(table)
console.log(JSON.stringify({ bench: 'many-chunks', chunks, batches, projects, table }))
await store.close()

/** What `undo` does is not part of it. */
async function measure<T>(work: (round: number) => Promise<T>, undo?: (done: T) => Promise<void>) {
  const times: number[] = []
  for (let round = 0; round < rounds; round++) {
    const begun = performance.now()
    const done = await work(round)
    times.push(performance.now() - begun)
    await undo?.(done)
  }
  times.sort((a, b) => a - b)
  const at = (share: number): number => Math.round(times[Math.floor(times.length * share)]! * 100) / 100
  return { p50_ms: at(0.5), p99_ms: at(0.99) }
}

/** Written by the database itself: nine chunks of ten are sealed, the last one is ready. */
async function fill(): Promise<void> {
  const per_batch = Math.ceil(chunks / batches)
  await store.write(async (tx) => {
    await sql`INSERT INTO projects (id, name, plan, created)
      SELECT 'proj_' || lpad(p::text, 6, '0'), 'p' || p, 'payg', 1 FROM generate_series(1, ${sql.lit(projects)}) p`.execute(
      tx,
    )
    await sql`INSERT INTO files (id, project_id, purpose, filename, bytes, line_count, status, created, expires_at)
      SELECT 'file_' || id, id, 'batch', 'in.jsonl', 1, 1, 'processed', 1, 1e15 FROM projects`.execute(tx)
    const ids = Array.from({ length: batches }, () => newId('batch', now))
    for (const [i, id] of ids.entries()) {
      const project = `proj_${String((i % projects) + 1).padStart(6, '0')}`
      await sql`INSERT INTO batches (id, project_id, key_id, status, endpoint, input_file_id, completion_window, total, chunk_count, created, expires_at)
        VALUES (${id}, ${project}, 'key_1', 'in_progress', '/v1/chat/completions', ${`file_${project}`}, '24h', ${per_batch * 1000}, ${per_batch}, ${now}, ${now + 86_400_000})`.execute(
        tx,
      )
      await sql`INSERT INTO chunks (batch_id, idx, project_id, state, deadline, first_line, line_count, byte_start, byte_end, output_blob, output_bytes, audit_blob)
        SELECT ${id}, c, ${project}, CASE WHEN c % 10 = 9 THEN 'ready' ELSE 'sealed' END, ${now + 86_400_000}, c * 1000 + 1, 1000, c * 1000000, c * 1000000 + 1000000,
          'batches/' || ${id} || '/' || c || '-output', 2000000, 'batches/' || ${id} || '/' || c || '-audit'
        FROM generate_series(0, ${sql.lit(per_batch - 1)}) c`.execute(tx)
    }
  })
}
