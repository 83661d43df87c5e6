// A long day in short: real processes, many batches, and clients that upload, ask, read along, download, cancel,
// delete and hang up in the middle. Prints what API and worker hold, memory and open handles, and says at the end
// whether that is flat. Fails if it is not, if it is too much, or if a batch comes out wrong.
//
//   npm run soak -- [--lines 1000000] [--every 10] [--clients 4]
import { readdirSync } from 'node:fs'
import { setTimeout } from 'node:timers/promises'
import { Bench, familyOf, memoryOf, modelAt, option } from './harness.ts'
import { SoakClient, type SoakCounts } from './soak-client.ts'

const LINES = option('lines', 1_000_000)
/** Seconds between two looks. */
const every = option('every', 10)
const clientCount = option('clients', 4)
await using bench = new Bench('soak')
const EVERY_MS = every * 1000
/** The time for which connections that nobody uses any more may stay open on either side. */
const SETTLE_MS = 12_000

const GOAL_MIB = 300
/** A rise over the last half that garbage collection alone may cause. */
const RISE_MIB_MAX = 40
/** Handles that may be left over when all is quiet: connections kept for later. */
const HANDLES_LEFT_MAX = 8

interface Held {
  rss_mib: number
  heap_mib: number
  handles: number
}

interface Sample {
  at_s: number
  api: Held
  worker: Held
}

const service = await bench.service(modelAt(await bench.upstream(), 1024))
const { url, key } = service
const pids = familyOf(service.process.pid)
const counts: SoakCounts = { lines: 0, batches: 0, cancelled: 0, calls: 0, complaints: [] }
const clients = Array.from(
  { length: clientCount },
  (_, number) => new SoakClient({ url, key, number, counts }),
)
// Connections and files that are opened once and kept belong to no batch.
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
for (const complaint of counts.complaints) console.log(`FAULT: ${complaint}`)
console.log(
  `${counts.batches} batches, ${counts.cancelled} cancelled, ${counts.calls} calls, ${Math.round(seconds)} s`,
)
const late = samples.slice(Math.floor(samples.length / 2))
for (const name of ['api', 'worker'] as const) {
  const most = (of: (held: Held) => number): number => Math.max(...samples.map((one) => of(one[name])))
  bench.figure(
    `${name}: peak, MiB`,
    most(({ rss_mib }) => rss_mib),
    { atMost: GOAL_MIB },
  )
  const rise = (of: (held: Held) => number): number => riseOf(late, (one) => of(one[name]))
  bench.figure(
    `${name}: rise over the last half, MiB`,
    rise(({ rss_mib }) => rss_mib),
    { atMost: RISE_MIB_MAX },
  )
  bench.figure(
    `${name}: rise of its heap, MiB`,
    rise(({ heap_mib }) => heap_mib),
    { atMost: RISE_MIB_MAX },
  )
  bench.figure(`${name}: handles left open`, rest[name].handles - idle[name].handles, {
    atMost: HANDLES_LEFT_MAX,
  })
}
if (counts.complaints.length > 0 || bench.misses.length > 0) process.exitCode = 1

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

/** By the line of least squares, from the first of these samples to the last. */
function riseOf(samples: readonly Sample[], of: (sample: Sample) => number): number {
  const first = samples[0]
  const last = samples.at(-1)
  if (!first || !last || first === last) return 0
  const mean = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0) / values.length
  const at = mean(samples.map((sample) => sample.at_s))
  const value = mean(samples.map(of))
  let over = 0
  let under = 0
  for (const sample of samples) {
    over += (sample.at_s - at) * (of(sample) - value)
    under += (sample.at_s - at) ** 2
  }
  return (over / under) * (last.at_s - first.at_s)
}
