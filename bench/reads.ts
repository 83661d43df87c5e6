// How long reading takes while a batch runs at full speed, with many batches of earlier days in the database:
// `GET /v1/batches/{id}` of the running one and of any, and pages of the lists; first while the service is idle,
// then while it dispatches to an upstream that answers at once.
//
//   node bench/reads.ts [--lines 100000] [--batches 100000] [--every-ms 5]
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { setTimeout } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { Pool } from 'undici'
import { newId } from '../src/domain/ids.ts'
import { writeLines } from './batch-client.ts'
import { start } from './processes.ts'
import { startService } from './service.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '100000' },
    batches: { type: 'string', default: '100000' },
    'every-ms': { type: 'string', default: '5' },
  },
})
const lines = Number(values.lines)
const everyMs = Number(values['every-ms'])
const IDLE_CALLS = 200
/** Rows written in one transaction: the service is running meanwhile. */
const ROWS_AT_ONCE = 5000
const HOUR_MS = 3_600_000

const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const input = join(folder, 'input.jsonl')
await writeLines(input, lines, 1024)

const here = (file: string): string => new URL(file, import.meta.url).pathname
const upstream = await start(here('./fast-upstream.ts'), [])
const service = await startService(
  folder,
  `
models: [{id: bench, upstreams: [{type: openai, base_url: "${upstream.first}", concurrency_max: 64}]}]
`,
)
const { data, url, key, client } = service
// One connection of its own for the calls that are timed.
const pool = new Pool(url, { connections: 1 })
const file = await client.upload(input, 50)

const three = join(folder, 'three.jsonl')
await writeLines(three, 3, 1024)
const first = await client.completed((await client.create(await client.upload(three, 20))).id, 20)
const earlier = multiply(first.id, Number(values.batches))

type Times = Record<'the running batch' | 'any batch' | 'a page of batches' | 'a page of files', number[]>

/** Whether the batch that was asked for last has ended. */
let done = false
const batchesBefore = (): string => `/v1/batches?limit=20&after=${any()}`
const idle = await ask(first.id, (calls) => calls < IDLE_CALLS)
const batch = await client.create(file)
const begun = performance.now()
const running = await ask(batch.id, () => !done)
const seconds = (performance.now() - begun) / 1000

const rows: Record<string, Record<string, number>> = {}
for (const [what, times] of Object.entries(idle)) rows[`idle: ${what}`] = summary(times)
for (const [what, times] of Object.entries(running)) rows[`dispatching: ${what}`] = summary(times)
console.log(`${values.batches} batches in the database`)
console.table(rows)
console.log(
  JSON.stringify({
    bench: 'reads',
    lines,
    batches: Number(values.batches),
    lines_per_s: Math.round(lines / seconds),
    ...rows,
  }),
)
await pool.close()
await service.stop()
await upstream.stop()
rmSync(folder, { recursive: true })

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
  const sorted = times.toSorted((a, b) => a - b)
  const at = (share: number): number =>
    Math.round((sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0) * 100) / 100
  return { calls: times.length, p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), max_ms: at(1) }
}
