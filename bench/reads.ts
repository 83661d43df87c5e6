// How long reading takes while a batch runs at full speed, with many batches of earlier days in the database:
// `GET /v1/batches/{id}` of the running one and of any, and pages of the lists; first while the service is idle,
// then while it dispatches to an upstream that answers at once.
//
//   node bench/reads.ts [--lines 100000] [--batches 100000] [--every-ms 5]
import { join } from 'node:path'
import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { setTimeout } from 'node:timers/promises'
import { Pool } from 'undici'
import { newId } from '../src/domain/ids.ts'
import { Bench, modelAt, option, quantile, rounded, runBatch } from './harness.ts'

const IDLE_CALLS = 200
/** Rows written in one transaction: the service is running meanwhile. */
const ROWS_AT_ONCE = 5000
const HOUR_MS = 3_600_000

const lines = option('lines', 100_000)
const batches = option('batches', 100_000)
const everyMs = option('every-ms', 5)
await using bench = new Bench('reads')
const service = await bench.service(modelAt(await bench.upstream()))
const { data, url, key, client } = service
// One connection of its own for the calls that are timed.
const pool = new Pool(url, { connections: 1 })
bench.defer(() => pool.close())
const file = await client.upload(await bench.lines(lines, 1024), 50)
const first = await runBatch(service, await client.upload(await bench.lines(3, 1024), 20))
const earlier = multiply(first.id, batches)

type Times = Record<'the running batch' | 'any batch' | 'a page of batches' | 'a page of files', number[]>

/** Whether the batch that was asked for last has ended. */
let done = false
const batchesBefore = (): string => `/v1/batches?limit=20&after=${any()}`
const idle = await ask(first.id, (calls) => calls < IDLE_CALLS)
const batch = await client.create(file)
const running = await ask(batch.id, () => !done)

console.log(`${batches} batches in the database`)
const rows = (state: string, times: Times): [string, object][] =>
  Object.entries(times).map(([what, all]) => [`${state}: ${what}`, summary(all)])
console.table(Object.fromEntries([...rows('idle', idle), ...rows('dispatching', running)]))
for (const [what, times] of Object.entries(running))
  bench.figure(`${what}, at full dispatch, p99 ms`, quantile(times, 0.99), { atMost: 10 })

/** Each kind of call in turn, as long as `more` says. */
async function ask(batch_id: string, more: (calls: number) => boolean): Promise<Times> {
  const times: Times = {
    'the running batch': [],
    'any batch': [],
    'a page of batches': [],
    'a page of files': [],
  }
  done = false
  for (let calls = 0; more(calls); calls++) {
    const progress = await timed(`/v1/batches/${batch_id}`)
    done = progress.body.includes('"status":"completed"')
    times['the running batch'].push(progress.ms)
    times['any batch'].push((await timed(`/v1/batches/${any()}`)).ms)
    times['a page of batches'].push((await timed(batchesBefore())).ms)
    times['a page of files'].push((await timed('/v1/files?limit=20')).ms)
  }
  return times
}

async function timed(path: string): Promise<{ ms: number; body: string }> {
  await setTimeout(everyMs)
  const sent = performance.now()
  const response = await pool.request({ method: 'GET', path, headers: { authorization: `Bearer ${key}` } })
  const body = await response.body.text()
  const ms = performance.now() - sent
  if (response.statusCode !== 200) throw new Error(`GET ${path}: ${response.statusCode} ${body}`)
  return { ms, body }
}

function any(): string {
  return earlier[Math.floor(Math.random() * earlier.length)] ?? first.id
}

/** Writes rows like those of an ended batch, one an hour into the past; returns their IDs. */
function multiply(batch_id: string, count: number): string[] {
  const db = new DatabaseSync(join(data, 'offpeak.db'), { timeout: 5000 })
  const insert = (table: string, key_column: string): StatementSync => {
    const columns = db
      .prepare('select name from pragma_table_info(?)')
      .all(table)
      .map(({ name }) => String(name))
    const from = columns.map((name) => (name === key_column ? '?1' : name))
    const where = `where ${key_column} = ?2`
    return db.prepare(
      `insert into ${table} (${columns.join(', ')}) select ${from.join(', ')} from ${table} ${where}`,
    )
  }
  const batches = insert('batches', 'id')
  const chunks = insert('chunks', 'batch_id')
  const now = Date.now()
  const ids: string[] = []
  while (ids.length < count) {
    db.exec('begin immediate')
    for (let i = 0; i < ROWS_AT_ONCE && ids.length < count; i++) {
      const id = newId('batch', now - (ids.length + 1) * HOUR_MS)
      batches.run(id, batch_id)
      chunks.run(id, batch_id)
      ids.push(id)
    }
    db.exec('commit')
  }
  db.close()
  return ids
}

function summary(times: number[]): Record<string, number> {
  const at = (share: number): number => rounded(quantile(times, share))
  return { calls: times.length, p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), max_ms: at(1) }
}
