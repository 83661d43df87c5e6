// A long day in short: real processes, many batches, and clients that upload, ask, read along, download, cancel,
// delete and hang up in the middle. Prints what API and worker hold, memory and open handles, and says at the end
// whether that is flat. Fails if it is not, if it is too much, or if a batch comes out wrong.
//
//   npm run soak -- [--lines 1000000] [--every 10] [--clients 4]
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { familyOf, memoryOf, start } from './processes.ts'
import { SoakClient, type SoakCounts } from './soak-client.ts'
import { type Sample, verdictOf } from './soak-verdict.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '1000000' },
    /** Seconds between two looks. */
    every: { type: 'string', default: '10' },
    clients: { type: 'string', default: '4' },
  },
})
const LINES = Number(values.lines)
const EVERY_MS = Number(values.every) * 1000
/** As long as connections that nobody uses any more may stay open on either side. */
const SETTLE_MS = 12_000

const main = fileURLToPath(new URL('../bin/offpeak.js', import.meta.url))
const folder = mkdtempSync(join(tmpdir(), 'offpeak-soak-'))
const upstream = await start(fileURLToPath(new URL('./fast-upstream.ts', import.meta.url)), [])
writeFileSync(
  join(folder, 'offpeak.yaml'),
  `
rate_limit: {requests_per_minute: 0}
log: {level: error}
models:
  - {id: bench, price: {input_per_mtok: 0.1, output_per_mtok: 0.4}, upstreams: [{type: openai, base_url: "${upstream.first}"}]}
`,
)
const data = join(folder, 'data')
const args = ['serve', '--port', '0', '--data', data, '--config', join(folder, 'offpeak.yaml')]
const service = await start(main, args)
try {
  const url = service.first.replace('offpeak listening on ', '')
  const key = readFileSync(join(data, 'api-key'), 'utf8').trim()
  const pids = familyOf(service.process.pid)
  const counts: SoakCounts = { lines: 0, batches: 0, cancelled: 0, calls: 0, complaints: [] }
  const clients = Array.from(
    { length: Number(values.clients) },
    (_, number) => new SoakClient({ url, key, number, counts }),
  )
  // What is opened once and kept belongs to no batch.
  await Promise.all(clients.map((client) => client.oneBatch()))
  await setTimeout(SETTLE_MS)
  const idle = await sample(url, key, pids, 0)
  const begun = performance.now()
  const samples: Sample[] = []
  let going = true
  const looking = (async () => {
    while (going) {
      await setTimeout(EVERY_MS)
      const now = await sample(url, key, pids, (performance.now() - begun) / 1000)
      samples.push(now)
      console.log(
        `${now.at_s.toFixed(0).padStart(5)} s ${String(counts.lines).padStart(9)} lines  API ${told(now.api)}  worker ${told(now.worker)}`,
      )
    }
  })()
  const work = clients.map(async (client) => {
    while (counts.lines < LINES && counts.complaints.length === 0) await client.oneBatch()
  })
  await Promise.all(work)
  const seconds = (performance.now() - begun) / 1000
  going = false
  await looking
  await setTimeout(SETTLE_MS)
  const rest = await sample(url, key, pids, (performance.now() - begun) / 1000)
  const { rows, faults } = verdictOf(idle, samples, rest)
  console.table(rows)
  const { complaints, ...done } = counts
  console.log(JSON.stringify({ bench: 'soak', ...done, seconds: Math.round(seconds), rows }))
  for (const fault of [...complaints, ...faults]) console.log(`FAULT: ${fault}`)
  if (complaints.length + faults.length > 0) process.exitCode = 1
  else console.log('flat')
} finally {
  await service.stop()
  await upstream.stop()
  rmSync(folder, { recursive: true })
}

async function sample(url: string, key: string, pids: readonly number[], at_s: number): Promise<Sample> {
  const headers = { authorization: `Bearer ${key}` }
  const metrics = await (await fetch(`${url}/metrics`, { headers })).text()
  const heap = (name: string): number => {
    const rows = metrics.matchAll(/^nodejs_heap_size_used_bytes\{([^}]*)\} (\S+)/gm)
    const bytes = [...rows].filter(([, labels]) => labels?.includes(`"${name}`)).map((row) => Number(row[2]))
    return Math.round(Math.max(...bytes) / 2 ** 20)
  }
  const [api = 0, ...workers] = pids
  return {
    at_s,
    api: { rss_mib: memoryOf(api, 'Rss'), heap_mib: heap('api'), handles: handlesOf(api) },
    // Where there are several, the largest.
    worker: {
      rss_mib: Math.max(...workers.map((pid) => memoryOf(pid, 'Rss'))),
      heap_mib: heap('worker'),
      handles: Math.max(...workers.map(handlesOf)),
    },
  }
}

function handlesOf(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).length
}

function told({ rss_mib, heap_mib, handles }: Sample['api']): string {
  return `${String(rss_mib).padStart(4)} MiB (heap ${String(heap_mib).padStart(3)}) ${String(handles).padStart(3)} handles`
}
