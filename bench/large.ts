// One file of many short lines on PostgreSQL and a bucket: how memory, lines/s and times of calls change from its first
// lines to its last, and what a line leaves in both stores. The server answers at once; the bucket's stand-in keeps
// its objects in the memory of this process.
//
//   node bench/large.ts [--lines 3000000] [--bytes 160] [--answer-bytes 20] [--concurrency 256]
import { setTimeout } from 'node:timers/promises'
import { Client } from 'pg'
import { withoutPostgres } from '../test/fakes/postgres-server.ts'
import { sharedStorage } from '../test/fakes/shared-storage.ts'
import { callApi } from '../test/support/api.ts'
import { Bench, modelAt, option, rounded } from './harness.ts'

if (withoutPostgres) throw new Error(withoutPostgres)

const lines = option('lines', 3_000_000)
const bytes = option('bytes', 160)
const answerBytes = option('answer-bytes', 20)
const concurrency = option('concurrency', 256)
/** Parts of the run that are told apart. */
const PARTS = 10
const WINDOW = '30d'
await using bench = new Bench('large')
const upstream = await bench.start('./fast-upstream.ts', [String(answerBytes)])
const storage = await sharedStorage({ fsync: true, settings: ['shared_buffers=128MB'] })
bench.defer(() => storage[Symbol.asyncDispose]())
const shared = await storage.make()
const database = new Client({ connectionString: /database: "([^"]+)"/.exec(shared.yaml)?.[1] ?? '' })
await database.connect()
bench.defer(() => database.end())
const plans = `
limits: {lines_max: ${lines}, file_bytes_max: 1TiB}
plans: {payg: {completion_windows: [24h, ${WINDOW}]}}
`
const service = await bench.service(`${shared.yaml}${plans}${modelAt(upstream.first, concurrency)}`, {
  env: shared.env,
})
const { client } = service
const path = await bench.lines(lines, bytes)
const memory = (): Record<string, number> => {
  const [api = 0, worker = 0] = service.resident_mib()
  const [apiPeak = 0, workerPeak = 0] = service.peak_mib()
  return { 'API, MiB': api, 'API peak': apiPeak, 'worker, MiB': worker, 'worker peak': workerPeak }
}
const rows: Record<string, string | number>[] = [{ at: 'idle', ...memory() }]
const before = await databaseBytes()
const uploading = performance.now()
const file = await client.upload(path, 200)
const uploaded = (performance.now() - uploading) / 1000
const input = bucketBytes()
rows.push({ at: 'uploaded', 'lines/s': rounded(lines / uploaded), ...memory() })
const planning = performance.now()
const { id } = await client.create(file, { more: { completion_window: WINDOW } })
const rates: number[] = []
let [done, since] = [0, performance.now()]
for (let part = 1; part <= PARTS; ) {
  await setTimeout(1000)
  const { completed } = (await client.get(id)).request_counts
  if (done === 0 && completed > 0) {
    rows.push({ at: `planned after ${rounded((performance.now() - planning) / 1000)} s`, ...memory() })
    ;[done, since] = [completed, performance.now()]
  }
  if (completed < (lines * part) / PARTS) continue
  const rate = ((completed - done) / (performance.now() - since)) * 1000
  rates.push(rate)
  rows.push({ at: `${part * PARTS} %`, 'lines/s': rounded(rate), ...memory() })
  ;[done, since] = [completed, performance.now()]
  part++
}
await client.completed(id, 200)
rows.push({ at: 'completed', ...memory() })
const at = { url: service.url, key: service.key }
for (const [what, call] of Object.entries({
  'page of its last lines': `/v1/batches/${id}/results?limit=100&after=${lines - 100}`,
  'line in the middle by custom_id': `/v1/batches/${id}/lines?custom_id=line-${Math.floor(lines / 2)}`,
})) {
  const begun = performance.now()
  await callApi(at, 'GET', call)
  bench.figure(`${what}, ms`, performance.now() - begun)
}
const downloading = performance.now()
const { output_file_id } = await client.get(id)
const answer = await fetch(`${service.url}/v1/files/${output_file_id}/content`, {
  headers: { authorization: `Bearer ${service.key}` },
})
let downloaded = 0
for await (const piece of answer.body!) downloaded += piece.length
rows.push({
  at: `downloaded ${rounded(downloaded / 2 ** 20)} MiB`,
  'lines/s': rounded((lines / (performance.now() - downloading)) * 1000),
  ...memory(),
})
console.table(rows)
const peaks = service.peak_mib()
bench.figure('lines/s of the last tenth ÷ the second', rates.at(-1)! / rates[1]!, { atLeast: 0.9 })
bench.figure('API at the peak, MiB', peaks[0] ?? 0)
bench.figure('worker at the peak, MiB', peaks[1] ?? 0)
bench.figure('bytes of PostgreSQL for 1,000 lines', (((await databaseBytes()) - before) / lines) * 1000)
console.log('bytes of the bucket for a line')
const after = bucketBytes()
console.table(Object.fromEntries([...after].map(([kind, sum]) => [kind, rounded(sum / lines)])))
const sumOf = (sizes: ReadonlyMap<string, number>): number => [...sizes.values()].reduce((a, b) => a + b, 0)
bench.figure('bytes of the bucket for a line, its input', sumOf(input) / lines)
bench.figure('bytes of the bucket for a line, all', sumOf(after) / lines)

async function databaseBytes(): Promise<number> {
  const { rows } = await database.query('SELECT pg_database_size(current_database())::float8 AS bytes')
  return rows[0].bytes
}

/** By kind: the end of an object's name, or its folder. */
function bucketBytes(): Map<string, number> {
  const sizes = new Map<string, number>()
  for (const [key, { bytes: content }] of storage.s3.objects) {
    const [, folder = '', ...rest] = key.split('/')
    const kind = folder === 'batches' ? (rest.at(-1)?.split('-').at(-1) ?? folder) : folder
    sizes.set(kind, (sizes.get(kind) ?? 0) + content.length)
  }
  return sizes
}
