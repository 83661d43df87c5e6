// The same batch on SQLite and a folder, and on PostgreSQL and a bucket, one after the other in one run: lines
// per second from the creation of the batch to `completed`, and what the database was asked per 1,000 lines.
// The upstream is another process and answers at once; PostgreSQL syncs every commit; the bucket is a stand-in
// in this process, so what it costs is the client's side and a copy over the loopback.
//
//   node bench/stores.ts [--lines 60000] [--bytes 1024] [--concurrency 64] [--rounds 3]
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { Client } from 'pg'
import { withoutPostgres } from '../test/fakes/postgres-server.ts'
import { sharedStorage } from '../test/fakes/shared-storage.ts'
import { BatchClient, writeLines } from './batch-client.ts'
import { type Started, start } from './processes.ts'

if (withoutPostgres) throw new Error(withoutPostgres)

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '60000' },
    bytes: { type: 'string', default: '1024' },
    concurrency: { type: 'string', default: '64' },
    rounds: { type: 'string', default: '3' },
  },
})
const lines = Number(values.lines)
const here = (file: string): string => new URL(file, import.meta.url).pathname
const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
await writeLines(input, lines, Number(values.bytes))
const upstream = await start(here('./fast-upstream.ts'), [])
const storage = await sharedStorage({
  fsync: true,
  settings: ['shared_preload_libraries=pg_stat_statements', 'shared_buffers=128MB'],
})
const shared = await storage.make()
const database = /database: "([^"]+)"/.exec(shared.yaml)?.[1] ?? ''
const statistics = new Client({ connectionString: database })
await statistics.connect()
await statistics.query('CREATE EXTENSION pg_stat_statements')
// What this connection asks is not counted.
await statistics.query('SET pg_stat_statements.track = none')

const local = await service('sqlite', '', {})
const remote = await service('postgres', shared.yaml, shared.env)
const rows: { sqlite: number; postgres: number; ratio: number; statements: number; requests: number }[] = []
for (let round = 0; round < Number(values.rounds); round++) {
  const sqlite = await runBatch(local)
  const before = { statements: await statements(), requests: storage.s3.requests.length }
  const postgres = await runBatch(remote, statusInDatabase)
  const per1000 = (count: number): number => Math.round((count / lines) * 10_000) / 10
  rows.push({
    sqlite,
    postgres,
    ratio: Math.round((postgres / sqlite) * 1000) / 1000,
    statements: per1000((await statements()) - before.statements),
    requests: per1000(storage.s3.requests.length - before.requests),
  })
}
console.table(
  rows.map(({ sqlite, postgres, ratio, statements, requests }) => ({
    'SQLite and disk, lines/s': sqlite,
    'PostgreSQL and S3, lines/s': postgres,
    ratio,
    'SQL statements per 1,000 lines': statements,
    'S3 requests per 1,000 lines': requests,
  })),
)
const most = await statistics.query(
  `SELECT calls, round(mean_exec_time::numeric, 3) AS mean_ms, left(regexp_replace(query, '\\s+', ' ', 'g'), 90) AS query
   FROM pg_stat_statements ORDER BY calls DESC LIMIT 40`,
)
console.table(most.rows)
console.log(JSON.stringify({ bench: 'stores', lines, bytes: Number(values.bytes), rows }))
await Promise.all([local.process.stop(), remote.process.stop()])
await upstream.stop()
await statistics.end()
await storage[Symbol.asyncDispose]()
rmSync(folder, { recursive: true })

interface Service {
  process: Started
  client: BatchClient
}

async function service(name: string, yaml: string, env: Record<string, string>): Promise<Service> {
  const config = join(folder, `${name}.yaml`)
  writeFileSync(
    config,
    `${yaml}
rate_limit: {requests_per_minute: 0}
log: {level: warn}
models:
  - id: bench
    price: {input_per_mtok: 0.1, output_per_mtok: 0.4}
    upstreams: [{type: openai, base_url: "${upstream.first}", concurrency_max: ${values.concurrency}}]
`,
  )
  const data = join(folder, name)
  const args = ['serve', '--port', '0', '--data', data, '--config', config]
  const process = await start(here('../bin/offpeak.js'), args, env)
  const key = readFileSync(join(data, 'api-key'), 'utf8').trim()
  const url = process.first.replace('offpeak listening on ', '')
  return { process, client: new BatchClient(url, key) }
}

/** Asking the API would add the statements of each call to those of the work. */
async function statusInDatabase(id: string): Promise<string> {
  const table = id.startsWith('file_') ? 'files' : 'batches'
  const { rows } = await statistics.query(`SELECT status FROM ${table} WHERE id = $1`, [id])
  return rows[0].status
}

/** Lines per second; the upload is not part of it. */
async function runBatch(
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
  return Math.round(lines / seconds)
}

async function statements(): Promise<number> {
  const { rows } = await statistics.query('SELECT sum(calls)::float8 AS calls FROM pg_stat_statements')
  return rows[0].calls
}
