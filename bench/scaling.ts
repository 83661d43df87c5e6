// The cost of many workers to PostgreSQL, by statement and second, and of a day of lines in requests to a bucket. One real
// worker is counted beside the sessions of many: its statements by pg_stat_statements under a role of its own, requests by
// the bucket's stand-in. Two runs, one with hardly any time for its chunks and one with much time for few, say what a chunk
// costs and what a second costs: count = per chunk × chunks + per second × seconds. Everything else is arithmetic with these.
//
//   node bench/scaling.ts [--workers 1000] [--lines-per-day 1000000000] [--chunks 40] [--slow-lines 2000]
//
// The machines are described by --connections and --cores of PostgreSQL, --put-usd and --get-usd for a million requests.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Client } from 'pg'
import { withoutPostgres } from '../test/fakes/postgres-server.ts'
import { sharedStorage } from '../test/fakes/shared-storage.ts'
import { Bench, cpuOf, modelAt, option, reached, rounded, runBatch, type Started } from './harness.ts'

if (withoutPostgres) throw new Error(withoutPostgres)

const CHUNK_LINES = 1_000
const DAY_S = 86_400
const IDLE_S = 20
const SLOW_MS = 5_000
const CONCURRENCY = 256
/** Growth of a deployment that is asked about beside its present size. */
const TIMES = 10
const ROLE = 'counted'
const OFFPEAK = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))

/** The purpose of a statement, by its text; the first that matches. */
const PURPOSES: readonly [purpose: string, of: RegExp][] = [
  ['lease', /^(update|delete from) "workers"/],
  ['report', /"(worker_reports|lane_reports|upstream_\w+|model_\w+)"/],
  ['claim', /skip locked|for key share|"(tasks|paused_models|waiting_\w+)"/],
  ['commit', /^(insert|update|delete)/],
  ['transaction', /^(begin|commit|rollback|start|set)/],
  ['read', /^(select|with)/],
]

const workers = option('workers', 1_000)
const linesPerDay = option('lines-per-day', 1_000_000_000)
const chunks = option('chunks', 40)
const slowLines = option('slow-lines', 2_000)
const connectionsMax = option('connections', 500)
const cores = option('cores', 16)
const putUsd = option('put-usd', 5)
const getUsd = option('get-usd', 0.4)
await using bench = new Bench('scaling')
let latencyMs = 0
const storage = await sharedStorage({
  fsync: true,
  settings: ['shared_preload_libraries=pg_stat_statements'],
})
bench.defer(() => storage[Symbol.asyncDispose]())
const { yaml, env } = await storage.make()
const url = /database: "([^"]+)"/.exec(yaml)?.[1] ?? ''
const statistics = new Client({ connectionString: url })
await statistics.connect()
bench.defer(() => statistics.end())
await statistics.query('CREATE EXTENSION pg_stat_statements')
await statistics.query('SET pg_stat_statements.track = none')
await statistics.query(`CREATE ROLE ${ROLE} SUPERUSER LOGIN`)
const models = modelAt(await bench.waitingUpstream(() => latencyMs), CONCURRENCY)
const start = (role: string, database: string, ...more: string[]): Promise<Started> => {
  const config = join(bench.folder, `${role}.yaml`)
  const common = `rate_limit: {requests_per_minute: 0}\nlog: {level: warn}\n`
  writeFileSync(config, `${yaml.replace(url, database)}\n${common}${models}`)
  return bench.start(OFFPEAK, [role, '--config', config, '--data', join(bench.folder, role), ...more], env)
}
const counted = new URL(url)
counted.username = ROLE
const api = await start('api', url, '--port', '0')
const { client } = reached(api, join(bench.folder, 'api'))
await start('worker', counted.href)

interface Cost {
  /** Calls of a statement, or requests. */
  calls: number
  ms: number
  walBytes: number
}

type Costs = Map<string, Cost>

const NOTHING: Cost = { calls: 0, ms: 0, walBytes: 0 }

interface Counted {
  statements: Costs
  requests: Costs
  seconds: number
  /** CPU time of PostgreSQL's processes that serve the worker. */
  cpuMs: number
}

const idleAlone = await watch(() => setTimeout(IDLE_S * 1000))
// The sessions of the others: a worker reads them when it claims, so that each gets its share.
await statistics.query(
  `INSERT INTO workers (id, role, lease_until, started, lease_ms)
   SELECT 'worker_' || n, role, lease_until + 86400000, started, lease_ms FROM workers, generate_series(2, $1::int) n
   WHERE role = 'worker'`,
  [workers],
)
await statistics.query(
  `INSERT INTO worker_reports (worker_id, reported_at, report)
   SELECT 'worker_' || n, reported_at, report FROM worker_reports, generate_series(2, $1::int) n`,
  [workers],
)
const idle = await watch(() => setTimeout(IDLE_S * 1000))
const objectsBefore = storage.s3.objects.size
let file = ''
const uploading = await watch(async () => {
  file = await upload(chunks * CHUNK_LINES)
})
const fast = await watch(() => run(file))
const objects = (storage.s3.objects.size - objectsBefore) / chunks
latencyMs = SLOW_MS
const slowFile = await upload(slowLines)
const slow = await watch(() => run(slowFile))
const { rows: open } = await statistics.query(
  'SELECT count(*)::int AS n FROM pg_stat_activity WHERE usename = $1',
  [ROLE],
)
const connections: number = open[0].n

const slowChunks = slowLines / CHUNK_LINES
const chunksPerS = linesPerDay / DAY_S / CHUNK_LINES
const statements = solved('statements')
const requests = solved('requests')
console.log(
  `one worker of ${workers}: statements, and what ${workers} busy workers and ${linesPerDay} lines a day make`,
)
console.table(
  [...statements]
    .map(([what, { perChunk, perSecond }]) => ({
      purpose: purposeOf(what),
      statement: what,
      'per chunk': rounded(perChunk.calls),
      'busy worker, per s': rounded(perSecond.calls),
      'idle worker, per s': rounded((idle.statements.get(what)?.calls ?? 0) / idle.seconds),
      'mean ms': rounded(meanMs(what)),
      'all, per s': rounded(total({ perChunk, perSecond }, 'calls', workers)),
    }))
    .sort((a, b) => b['all, per s'] - a['all, per s'])
    .slice(0, 30),
)
const purposes = Object.groupBy(statements, ([what]) => purposeOf(what))
console.table(
  Object.fromEntries(
    Object.entries(purposes).map(([purpose, found = []]) => {
      const sum = (field: keyof Cost, count: number): number =>
        found.reduce((all, [, cost]) => all + total(cost, field, count), 0)
      return [
        purpose,
        {
          [`per s, ${workers} workers`]: rounded(sum('calls', workers)),
          'execution, s per s': rounded(sum('ms', workers) / 1000),
          'WAL, KiB/s': rounded(sum('walBytes', workers) / 1024),
          [`per s, ${workers * TIMES} workers`]: rounded(sum('calls', workers * TIMES)),
        },
      ]
    }),
  ),
)
console.log('requests to the bucket')
console.table(
  [...requests].map(([what, { perChunk, perSecond }]) => ({
    request: what,
    'per chunk': rounded(perChunk.calls),
    'busy worker, per s': rounded(perSecond.calls),
    'a day': rounded(total({ perChunk, perSecond }, 'calls', workers) * DAY_S),
  })),
)
const perDay = (isWrite: boolean): number =>
  [...requests]
    .filter(([what]) => /^(PUT|POST|LIST)/.test(what) === isWrite && !what.startsWith('DELETE'))
    .reduce((sum, [, cost]) => sum + total(cost, 'calls', workers) * DAY_S, 0)
const sumOf = (field: keyof Cost, of: 'perChunk' | 'perSecond'): number =>
  [...statements.values()].reduce((sum, cost) => sum + cost[of][field], 0)
const [perChunk, perSecond] = [sumOf('calls', 'perChunk'), sumOf('calls', 'perSecond')]
// Idle workers alone keep their connections open, so that no process ends with what it has used.
const msEach = (idleAlone.cpuMs + idle.cpuMs) / (callsOf(idleAlone.statements) + callsOf(idle.statements))
const workersMax = ((cores * 1000) / msEach - chunksPerS * perChunk) / perSecond
bench.figure('statements per chunk', perChunk)
bench.figure('statements per second of a busy worker', perSecond)
bench.figure('statements per second of an idle worker', callsOf(idle.statements) / idle.seconds)
bench.figure('the same without the sessions of others', callsOf(idleAlone.statements) / idleAlone.seconds)
bench.figure('ms of CPU of PostgreSQL per statement', msEach)
bench.figure('connections of a worker', connections)
bench.figure(`workers that ${connectionsMax} connections are enough for`, connectionsMax / connections)
bench.figure(`busy workers that ${cores} cores of PostgreSQL are enough for`, workersMax)
bench.figure(`cells for ${workers * TIMES} busy workers`, Math.ceil((workers * TIMES) / workersMax))
bench.figure('objects that a chunk leaves', objects)
bench.figure('millions of requests that write, a day', perDay(true) / 1e6)
bench.figure('millions of requests that read, a day', perDay(false) / 1e6)
bench.figure('USD a day for requests', (perDay(true) * putUsd + perDay(false) * getUsd) / 1e6)

async function upload(lines: number): Promise<string> {
  return await client.upload(await bench.lines(lines, 1024), 100)
}

async function run(file: string): Promise<void> {
  await runBatch({ client, cpu_us: api.cpu_us }, file, { askMs: 200 })
}

/** Milliseconds of CPU so far of PostgreSQL's processes that serve the worker. */
async function cpuOfBackends(): Promise<number> {
  const { rows } = await statistics.query<{ pid: number }>(
    'SELECT pid FROM pg_stat_activity WHERE usename = $1',
    [ROLE],
  )
  return rows.reduce((sum, { pid }) => sum + cpuOf(pid), 0) / 1000
}

/** Counts the worker's statements and all requests during `work`. */
async function watch(work: () => Promise<unknown>): Promise<Counted> {
  await statistics.query('SELECT pg_stat_statements_reset()')
  const seen = storage.s3.requests.length
  const [begun, cpuBefore] = [performance.now(), await cpuOfBackends()]
  await work()
  const seconds = (performance.now() - begun) / 1000
  const cpuMs = (await cpuOfBackends()) - cpuBefore
  const { rows } = await statistics.query<{ query: string; calls: number; ms: number; wal: number }>(
    `SELECT query, calls::float8, total_exec_time AS ms, wal_bytes::float8 AS wal
     FROM pg_stat_statements JOIN pg_roles ON pg_roles.oid = userid WHERE rolname = $1`,
    [ROLE],
  )
  const counts: Counted = { statements: new Map(), requests: new Map(), seconds, cpuMs }
  for (const { query, calls, ms, wal } of rows)
    add(counts.statements, statementOf(query), { calls, ms, walBytes: wal })
  for (const { method, key, query } of storage.s3.requests.slice(seen))
    add(counts.requests, requestOf(method, key, query), { calls: 1, ms: 0, walBytes: 0 })
  return counts
}

function add(costs: Costs, what: string, { calls, ms, walBytes }: Cost): void {
  const { calls: before, ms: msBefore, walBytes: walBefore } = costs.get(what) ?? NOTHING
  costs.set(what, { calls: before + calls, ms: msBefore + ms, walBytes: walBefore + walBytes })
}

/** The verb and the first table, and how rows are locked. */
function statementOf(query: string): string {
  const text = query.replace(/\s+/g, ' ').trim().toLowerCase()
  const verb = /^\w+/.exec(text)?.[0] ?? ''
  const table = /\b(from|into|update) ("\w+")/.exec(text)?.slice(1).join(' ') ?? ''
  const lock = / (for update skip locked|for update|for key share)/.exec(text)?.[0] ?? ''
  if (table === '') return /^(begin|commit|rollback|start)/.test(text) ? verb : text.slice(0, 40)
  return `${verb === 'update' ? '' : `${verb} `}${table}${lock}`
}

function purposeOf(statement: string): string {
  return PURPOSES.find(([, of]) => of.test(statement))?.[0] ?? 'other'
}

/** The kind of object is the end of its name, or its folder. */
function requestOf(method: string, key: string, query: URLSearchParams): string {
  if (query.has('list-type')) return 'LIST'
  const [, folder = '', ...rest] = key.split('/')
  const kind = folder === 'batches' ? (rest.at(-1)?.split('-').at(-1) ?? folder) : folder
  return `${method} ${kind}`
}

function callsOf(costs: Costs): number {
  return [...costs.values()].reduce((sum, { calls }) => sum + calls, 0)
}

/** The cost of a chunk and of a second, by the two runs; 0 where noise makes it negative. */
function solve(uploaded: number, inFast: number, inSlow: number): { perChunk: number; perSecond: number } {
  const both = chunks * slow.seconds - slowChunks * fast.seconds
  const perSecond = Math.max(0, (inSlow * chunks - inFast * slowChunks) / both)
  return { perChunk: Math.max(0, uploaded + inFast - perSecond * fast.seconds) / chunks, perSecond }
}

function solved(of: 'statements' | 'requests'): Map<string, { perChunk: Cost; perSecond: Cost }> {
  const runs = [uploading[of], fast[of], slow[of]]
  const names = new Set(runs.flatMap((run) => [...run.keys()]))
  return new Map(
    [...names].map((what) => {
      const [a = NOTHING, b = NOTHING, c = NOTHING] = runs.map((run) => run.get(what) ?? NOTHING)
      const calls = solve(a.calls, b.calls, c.calls)
      const ms = solve(a.ms, b.ms, c.ms)
      const walBytes = solve(a.walBytes, b.walBytes, c.walBytes)
      const cost = (of: 'perChunk' | 'perSecond'): Cost => ({
        ...{ calls: calls[of], ms: ms[of], walBytes: walBytes[of] },
      })
      return [what, { perChunk: cost('perChunk'), perSecond: cost('perSecond') }]
    }),
  )
}

/** A second of so many busy workers and of the day's chunks. */
function total(cost: { perChunk: Cost; perSecond: Cost }, field: keyof Cost, count: number): number {
  return cost.perChunk[field] * chunksPerS * (count / workers) + cost.perSecond[field] * count
}

function meanMs(what: string): number {
  const [a, b] = [fast.statements.get(what) ?? NOTHING, slow.statements.get(what) ?? NOTHING]
  return (a.ms + b.ms) / Math.max(1, a.calls + b.calls)
}
