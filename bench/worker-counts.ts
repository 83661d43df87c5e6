// The cost of a line for the worker of a service, in numbers that no other load on the machine changes: bytes allocated on its
// heap, statements of its database, and writes to its sockets.
import { existsSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { type Bench, familyOf, modelAt, runBatch } from './harness.ts'

export interface WorkerCounts {
  /** All bytes that were ever allocated on the heap of V8. */
  heapBytes: number
  statements: number
  socketWrites: number
}

interface Run {
  before: WorkerCounts
  after: WorkerCounts
  ms: number
}

/** Lines of the runs. The first is not counted: its code is not compiled yet. */
const WARM = 20_000
const RUNS = [10_000, 50_000] as const

/** Commits come with full chunks alone: those that come by time are more for each line on a machine that is busy. */
const BY_CHUNK = 'worker: {flush_interval: 20s, lease: 60s}\n'

/** How long it is measured what passing time costs a worker with open chunks: a slow machine has more of it per line. */
const STALL_MS = 3_000
/** Until what was answered before is committed. */
const SETTLE_MS = 500

/**
 * Per line of `bytes`: two runs that differ in their number of lines, so that what a run costs anyway drops out, as does
 * what passing time costs.
 */
export async function lineCosts(bench: Bench, bytes: number): Promise<WorkerCounts> {
  const upstream = await bench.start('./fast-upstream.ts')
  const file = join(bench.folder, 'counts')
  const preload = fileURLToPath(new URL('./count-process.ts', import.meta.url))
  const env = { NODE_OPTIONS: `--import ${preload}`, COUNTS_FILE: file }
  const service = await bench.service(modelAt(upstream.first) + BY_CHUNK, { env })
  const [, worker] = familyOf(service.process.pid!)
  const counts = async (): Promise<WorkerCounts> => {
    const path = `${file}-${worker}`
    rmSync(path, { force: true })
    process.kill(worker!, 'SIGUSR2')
    while (!existsSync(path) || readFileSync(path, 'utf8') === '') await setTimeout(10)
    return JSON.parse(readFileSync(path, 'utf8'))
  }
  const upload = async (lines: number): Promise<string> =>
    await service.client.upload(await bench.lines(lines, bytes), 20)
  const run = async (lines: number): Promise<Run> => {
    const uploaded = await upload(lines)
    const [before, begun] = [await counts(), performance.now()]
    await runBatch(service, uploaded)
    return { before, after: await counts(), ms: performance.now() - begun }
  }
  /** The model server stands still in the middle of a run. */
  const stall = async (): Promise<Run> => {
    const uploaded = await upload(RUNS[0])
    const { socketWrites } = await counts()
    const running = runBatch(service, uploaded)
    while ((await counts()).socketWrites === socketWrites) await setTimeout(10)
    upstream.process.kill('SIGSTOP')
    await setTimeout(SETTLE_MS)
    const before = await counts()
    const after = await setTimeout(STALL_MS).then(counts)
    upstream.process.kill('SIGCONT')
    await running
    return { before, after, ms: STALL_MS }
  }
  try {
    await run(WARM)
    const stalled = await stall()
    const [small, large] = [await run(RUNS[0]), await run(RUNS[1])]
    const of = (name: keyof WorkerCounts): number => {
      const did = ({ before, after }: Run): number => after[name] - before[name]
      const passing = (did(stalled) / stalled.ms) * (large.ms - small.ms)
      return (did(large) - did(small) - passing) / (RUNS[1] - RUNS[0])
    }
    return { heapBytes: of('heapBytes'), statements: of('statements'), socketWrites: of('socketWrites') }
  } finally {
    await service.stop()
  }
}
