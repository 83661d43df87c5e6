// The cost of a chunk to PostgreSQL as workers are added: so many simulated workers, each with connections of its own, claim and
// commit chunks by the service's own statements as fast as the database lets them, and send no lines. Statements, CPU of
// PostgreSQL, and how many of its connections wait for a lock, for a thousand lines each: in one batch, whose row and whose
// project's day all commits add to, and in as many batches and projects as there may be.
//
//   node bench/claims.ts [--workers 1,4,16,64,256] [--chunks 512] [--projects 32] [--together 1]
//
// `--together`: how many chunks a worker commits at once; a real one commits all that were finished while its last commit ran.
import { setTimeout } from 'node:timers/promises'
import { sql } from 'kysely'
import { Client } from 'pg'
import { dayOf } from '../src/domain/days.ts'
import { newId } from '../src/domain/ids.ts'
import { NO_SPEND, NO_TOKENS } from '../src/domain/money.ts'
import { Tallies } from '../src/ledger/tally.ts'
import { commitChunks } from '../src/results/commit.ts'
import { claimChunks } from '../src/store/chunk-claims.ts'
import { postgresStore } from '../src/store/postgres/store.ts'
import type { ChunkRow } from '../src/store/schema.ts'
import type { Store, Writer } from '../src/store/store.ts'
import { lockSession, openSession } from '../src/store/workers.ts'
import { postgresServer, withoutPostgres } from '../test/fakes/postgres-server.ts'
import { Bench, cpuOf, familyOf, option, rounded } from './harness.ts'

if (withoutPostgres) throw new Error(withoutPostgres)

const counts = option('workers', '1,4,16,64,256').split(',').map(Number)
const chunks = option('chunks', 512)
const projects = option('projects', 32)
const together = option('together', 1)
const CHUNK_LINES = 1_000
const CLAIMED_AT_ONCE = 4
const DAY_MS = 86_400_000
const SAMPLE_MS = 20
await using bench = new Bench('claims')
const server = await postgresServer({
  fsync: true,
  settings: [
    ...['shared_preload_libraries=pg_stat_statements', 'shared_buffers=256MB'],
    `max_connections=${Math.max(...counts) + 20}`,
  ],
})
bench.defer(() => server[Symbol.asyncDispose]())

/** The lines of every chunk, which are all alike. */
const FRESH = freshOf()
const rows: Record<string, string | number>[] = []
for (const batches of [1, projects]) for (const count of counts) rows.push(await measure(count, batches))
console.table(rows)
for (const row of rows)
  for (const what of ['statements', 'CPU ms', 'waiting for locks'])
    bench.figure(`${what}, ${row.workers} workers, ${row.batches} batches`, Number(row[what]))

async function measure(count: number, batches: number) {
  const url = await server.database()
  const statistics = new Client({ connectionString: url })
  await statistics.connect()
  // The error that ends the server is the one to see.
  statistics.on('error', () => {})
  await statistics.query('CREATE EXTENSION pg_stat_statements')
  await statistics.query('SET pg_stat_statements.track = none')
  const stores = Array.from({ length: count }, () => postgresStore({ url: `${url}?pool_max=1` }))
  const [first] = stores
  // A claim takes a share of what is ready, so that there has to be enough for all.
  const total = Math.max(chunks, 2 * count)
  await first!.write((tx) => fill(tx, batches, Math.ceil(total / batches)))
  await statistics.query('VACUUM ANALYZE')
  const workers = await Promise.all(
    stores.map(async (store) => ({
      store,
      id: await store.write((tx) => openSession(tx, 10 * 60_000, Date.now())),
    })),
  )
  const postmaster = await parentOf(statistics)
  const cpu = (): number => familyOf(postmaster).reduce((sum, pid) => sum + cpuOf(pid), 0) / 1000
  await statistics.query('SELECT pg_stat_statements_reset()')
  const [cpuBefore, begun] = [cpu(), performance.now()]
  const waits = { samples: 0, locks: 0 }
  const done = new AbortController()
  const sampling = sample(statistics, waits, done.signal)
  const finished = await Promise.all(workers.map(({ store, id }) => work(store, id)))
  const seconds = (performance.now() - begun) / 1000
  done.abort()
  await sampling
  const cpuMs = cpu() - cpuBefore
  const { rows: found } = await statistics.query(
    `SELECT sum(calls)::float8 AS calls, sum(total_exec_time)::float8 AS ms FROM pg_stat_statements
     JOIN pg_database ON pg_database.oid = dbid WHERE datname = current_database()`,
  )
  const sealed = finished.reduce((sum, one) => sum + one, 0)
  await Promise.all(stores.map((store) => store.close()))
  await statistics.end()
  const per1000 = (value: number): number => rounded((value / (sealed * CHUNK_LINES)) * 1000)
  const row = {
    ...{ batches, workers: count, 'chunks/s': rounded(sealed / seconds) },
    statements: per1000(found[0].calls),
    'CPU ms': per1000(cpuMs),
    'execution ms': per1000(found[0].ms),
    'waiting for locks': rounded(waits.locks / Math.max(1, waits.samples)),
  }
  console.log(JSON.stringify(row))
  return row
}

/** How many chunks it claimed and committed until there were none. */
async function work(store: Store, worker_id: string): Promise<number> {
  let sealed = 0
  for (;;) {
    const claims = await store.write(async (tx) => {
      if (!(await lockSession(tx, worker_id))) throw new Error('the session is lost')
      const order = { worker_id, urgentBefore: 0, count: CLAIMED_AT_ONCE }
      return await claimChunks(tx, order)
    })
    if (claims.length === 0) return sealed
    for (let i = 0; i < claims.length; i += together) {
      const commits = claims.slice(i, i + together).map((claim) => ({
        claim,
        begunAt: null,
        fresh: FRESH,
        hasReservations: false,
        record: recordOf(claim),
      }))
      const now = Date.now()
      await store.write((tx) => commitChunks(tx, commits, { file_retention_ms: () => DAY_MS }, now))
      sealed += commits.length
    }
  }
}

function freshOf() {
  const tallies = new Tallies()
  const line = { part: 'output' as const, day: dayOf(Date.now()), model: 'bench', entity: null }
  for (let i = 0; i < CHUNK_LINES; i++)
    tallies.add({
      ...{
        ...line,
        usage: NO_TOKENS,
        cost_nanos: 7,
        projected: NO_SPEND,
        isReserved: false,
        saved_nanos: null,
      },
      ...{ isNotRun: false, wasSent: true, isReasked: false, isFaulty: false },
    })
  return { tallies, errors: [], expired_lines: 0 }
}

function recordOf({ batch_id, idx }: ChunkRow) {
  const blob = (kind: string) => ({
    key: `batches/${batch_id}/${idx}-${kind}`,
    wrapped_key: 'w',
    bytes: 100_000,
  })
  const [output, audit] = [blob('output'), blob('audit')]
  const seal = {
    ...{ output_blob: output.key, output_bytes: output.bytes, error_blob: null, error_bytes: 0 },
    audit_blob: audit.key,
  }
  return {
    sealed: { seal, blobs: [output, audit], output_lines: CHUNK_LINES, error_lines: 0 },
    journalled: false,
  }
}

async function sample(
  statistics: Client,
  waits: { samples: number; locks: number },
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    const { rows } = await statistics.query(
      `SELECT count(*)::int AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
    )
    waits.samples++
    waits.locks += rows[0].n
    await setTimeout(SAMPLE_MS, undefined, { signal }).catch(() => {})
  }
}

async function parentOf(statistics: Client): Promise<number> {
  const { rows } = await statistics.query(
    `SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int AS pid`,
  )
  return rows[0].pid
}

/** Ready chunks, in batches of a project each. */
async function fill(tx: Writer, batches: number, perBatch: number): Promise<void> {
  const now = Date.now()
  const ends = now + DAY_MS
  for (let i = 0; i < batches; i++) {
    const project = `proj_${String(i).padStart(6, '0')}`
    const id = newId('batch', now)
    await tx.insertInto('projects').values({ id: project, name: project, plan: 'payg', created: 1 }).execute()
    await sql`INSERT INTO files (id, project_id, purpose, filename, bytes, line_count, status, created, expires_at)
      VALUES (${`file_${project}`}, ${project}, 'batch', 'in.jsonl', 1, 1, 'processed', 1, ${1e15})`.execute(
      tx,
    )
    await sql`INSERT INTO batches (id, project_id, key_id, status, endpoint, input_file_id, completion_window, total, chunk_count, created, expires_at)
      VALUES (${id}, ${project}, 'key_1', 'in_progress', '/v1/chat/completions', ${`file_${project}`}, '24h', ${perBatch * CHUNK_LINES}, ${perBatch}, ${now}, ${ends})`.execute(
      tx,
    )
    await sql`INSERT INTO chunks (batch_id, idx, project_id, key_id, state, run_at, deadline, first_line, line_count, byte_start, byte_end, model)
      SELECT ${id}, c, ${project}, 'key_1', 'ready', ${ends}, ${ends}, c * 1000 + 1, 1000, c * 1000000, c * 1000000 + 1000000, 'bench'
      FROM generate_series(0, ${perBatch - 1}::int) c`.execute(tx)
  }
}
