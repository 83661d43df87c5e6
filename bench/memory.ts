// Memory of API and worker, each a process, for batches of growing size against the simulator in a third: the peak of
// each and of both, and what both take at rest, before and after (PSS counts pages that they share once). Every size has
// a service of its own. Beside it, what Node takes alone, and the peak of two processes that do what a line needs and no more.
// `--program`: the bin/offpeak.js of another checkout, or of an installed package.
//
//   node bench/memory.ts [--lines 10000,200000] [--bytes 500] [--program bin/offpeak.js]
//   node bench/memory.ts --lines 5000000    # some ten minutes, and 4 GB of the folder for temporary files
import { once } from 'node:events'
import { createReadStream, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { join, resolve } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Bench, modelAt, option, runBatch } from './harness.ts'

/** The goals for both processes; the peak of up to 200,000 lines, and of more: of five million. */
const GOALS_MIB = { idle: 130, peak: 250, largest: 280 }
const CONCURRENCY = 1024
/** The young generation of a service (bin/offpeak.js). */
const YOUNG_GENERATION = { NODE_OPTIONS: '--max-semi-space-size=16' }
const LARGE_LINES = 200_000
/** After it, a service has released what it needs no longer. */
const REST_MS = 15_000
const CLONE = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))

const sizes = option('lines', '10000,200000').split(',').map(Number)
const bytes = option('bytes', 500)
const program = resolve(option('program', CLONE))
await using bench = new Bench('memory')
const simulator = await bench.start(program, ['sim', '--port', '0', '--latency-ms', '0'])
const base_url = `${simulator.first.replace('offpeak sim listening on ', '')}/v1`
const rows: Awaited<ReturnType<typeof measure>>[] = []
for (const lines of sizes) rows.push(await measure(lines))
console.table(rows)
bench.figure('Node alone, two processes, MiB', 2 * (await nodeAlone()))
const bareLines = Math.min(Math.max(...sizes), LARGE_LINES)
bench.figure(
  `two processes that do the least for ${bareLines} lines, at the peak, MiB`,
  await bareService(bareLines),
)
bench.figure('both at rest, MiB', rows[0]!['both idle, MiB'], { atMost: GOALS_MIB.idle })
const [small, large] = [rows.at(-2), rows.at(-1)]
if (small && large) {
  const growth = (large['both, MiB'] - small['both, MiB']) / ((large.lines - small.lines) / 1e6)
  bench.figure(`growth from ${small.lines} to ${large.lines} lines, MiB per million`, growth)
}
for (const row of rows)
  bench.figure(`both at the peak of ${row.lines} lines, MiB`, row['both, MiB'], {
    atMost: row.lines > LARGE_LINES ? GOALS_MIB.largest : GOALS_MIB.peak,
  })

async function measure(lines: number) {
  const service = await bench.service(modelAt(base_url, CONCURRENCY), { program })
  await setTimeout(REST_MS)
  const idle = sum(service.resident_mib())
  const idlePss = sum(service.resident_mib('Pss'))
  await runBatch(service, await service.client.upload(await bench.lines(lines, bytes), 50))
  const [api = 0, worker = 0] = service.peak_mib()
  await setTimeout(REST_MS)
  const afterwards = sum(service.resident_mib())
  await service.stop()
  return {
    lines,
    'API, MiB': api,
    'worker, MiB': worker,
    'both, MiB': api + worker,
    'both idle, MiB': idle,
    'idle, PSS': idlePss,
    'afterwards, MiB': afterwards,
  }
}

/** A process that does once what the API does all the time: SQLite, AES, zstd, HTTP, and a loop that V8 compiles. */
async function nodeAlone(): Promise<number> {
  const file = join(bench.folder, 'node-alone.mjs')
  writeFileSync(
    file,
    `import { createCipheriv, randomBytes } from 'node:crypto'
     import { DatabaseSync } from 'node:sqlite'
     import { zstdCompressSync, zstdDecompressSync } from 'node:zlib'
     new DatabaseSync(':memory:').exec('CREATE TABLE numbers (one)')
     createCipheriv('aes-256-gcm', randomBytes(32), randomBytes(12)).update('text')
     zstdDecompressSync(zstdCompressSync(Buffer.alloc(100_000)))
     let sum = 0
     for (let i = 0; i < 10_000_000; i++) sum = (sum + i * i) % 7
     const http = process.getBuiltinModule('node:http')
     const server = http.createServer((_, response) => response.end('text')).listen(0, () => {
       http.get({ port: server.address().port }, (response) => response.resume().on('end', () => console.log(sum)))
     })`,
  )
  const alone = await bench.start(file, [])
  await setTimeout(1_000)
  return sum(alone.resident_mib())
}

/** Peak of both processes of bare-service.ts. */
async function bareService(lines: number): Promise<number> {
  const stored = join(bench.folder, 'bare')
  const receiver = await bench.start('./bare-service.ts', ['receive', stored], YOUNG_GENERATION)
  const upload = request(receiver.first, { method: 'POST' })
  const answered = once(upload, 'response')
  createReadStream(await bench.lines(lines, bytes)).pipe(upload)
  await answered
  const sender = await bench.start(
    './bare-service.ts',
    ['send', stored, base_url, String(CONCURRENCY)],
    YOUNG_GENERATION,
  )
  return sum([...receiver.peak_mib(), ...sender.peak_mib()])
}

function sum(sizes: readonly number[]): number {
  return sizes.reduce((total, size) => total + size, 0)
}
