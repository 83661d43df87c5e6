// The same batch on SQLite and a folder, and on PostgreSQL and a bucket, one after the other in one run: lines
// per second from the creation of the batch to `completed`, and what the database was asked per 1,000 lines.
// The upstream is another process and answers at once; PostgreSQL syncs every commit; the bucket is a stand-in
// in this process, so what it costs is the client's side and a copy over the loopback.
//
//   node bench/stores.ts [--lines 60000] [--bytes 1024] [--concurrency 64] [--rounds 3]
import { setTimeout } from 'node:timers/promises'
import { Client } from 'pg'
import { withoutPostgres } from '../test/fakes/postgres-server.ts'
import { sharedStorage } from '../test/fakes/shared-storage.ts'
import { Bench, inTurns, median, modelAt, option, rounded, type Service } from './harness.ts'

if (withoutPostgres) throw new Error(withoutPostgres)

const lines = option('lines', 60_000)
const bytes = option('bytes', 1024)
const concurrency = option('concurrency', 64)
const rounds = option('rounds', 3)
await using bench = new Bench('stores')
const input = await bench.lines(lines, bytes)
const models = modelAt(await bench.upstream(), concurrency)
const storage = await sharedStorage({
  fsync: true,
  settings: ['shared_preload_libraries=pg_stat_statements', 'shared_buffers=128MB'],
})
bench.defer(() => storage[Symbol.asyncDispose]())
const shared = await storage.make()
const database = /database: "([^"]+)"/.exec(shared.yaml)?.[1] ?? ''
const statistics = new Client({ connectionString: database })
await statistics.connect()
bench.defer(() => statistics.end())
await statistics.query('CREATE EXTENSION pg_stat_statements')
// Statements of this connection are not counted.
await statistics.query('SET pg_stat_statements.track = none')

const local = await bench.service(models)
const remote = await bench.service(`${shared.yaml}${models}`, { env: shared.env })
const per1000 = (count: number): number => (count / lines) * 1000
const [sqlite = [], postgres = []] = await inTurns(rounds, [
  async () => ({ lines_per_s: await runBatchOf(local), statements: 0, requests: 0 }),
  async () => {
    const before = { statements: await statements(), requests: storage.s3.requests.length }
    const lines_per_s = await runBatchOf(remote, statusInDatabase)
    return {
      lines_per_s,
      statements: per1000((await statements()) - before.statements),
      requests: per1000(storage.s3.requests.length - before.requests),
    }
  },
])
console.table(
  postgres.map(({ lines_per_s, statements, requests }, i) => ({
    'SQLite and disk, lines/s': rounded(sqlite[i]!.lines_per_s),
    'PostgreSQL and S3, lines/s': rounded(lines_per_s),
    ratio: rounded(lines_per_s / sqlite[i]!.lines_per_s),
    'SQL statements per 1,000 lines': rounded(statements),
    'S3 requests per 1,000 lines': rounded(requests),
  })),
)
const ratios = postgres.map(({ lines_per_s }, i) => lines_per_s / sqlite[i]!.lines_per_s)
bench.figure('lines/s, PostgreSQL and a bucket ÷ SQLite and a folder', median(ratios))
bench.figure('SQL statements per 1,000 lines', median(postgres.map((one) => one.statements)))
bench.figure('S3 requests per 1,000 lines', median(postgres.map((one) => one.requests)))
const most = await statistics.query(
  `SELECT calls, round(mean_exec_time::numeric, 3) AS mean_ms, left(regexp_replace(query, '\\s+', ' ', 'g'), 90) AS query
   FROM pg_stat_statements ORDER BY calls DESC LIMIT 40`,
)
console.table(most.rows)

/** Asking the API would add the statements of each call to those of the work. */
async function statusInDatabase(id: string): Promise<string> {
  const table = id.startsWith('file_') ? 'files' : 'batches'
  const { rows } = await statistics.query(`SELECT status FROM ${table} WHERE id = $1`, [id])
  return rows[0].status
}

/** Lines per second; the upload is not part of it. */
async function runBatchOf(
  { client }: Service,
  statusOf: (id: string) => Promise<string> = async (id) => (await client.get(id)).status,
): Promise<number> {
  const file = await client.upload(input, 20)
  const begun = performance.now()
  const { id } = await client.create(file)
  while ((await statusOf(id)) !== 'completed') await setTimeout(50)
  const seconds = (performance.now() - begun) / 1000
  const { completed } = (await client.get(id)).request_counts
  if (completed !== lines) throw new Error(`only ${completed} lines were answered`)
  return lines / seconds
}

async function statements(): Promise<number> {
  const { rows } = await statistics.query('SELECT sum(calls)::float8 AS calls FROM pg_stat_statements')
  return rows[0].calls
}
