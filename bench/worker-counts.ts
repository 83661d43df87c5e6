// What a line costs the worker of a service, in numbers that no other load on the machine changes: bytes allocated on its
// heap, statements of its database, and writes to its sockets.
import { existsSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { writeLines } from './batch-client.ts'
import { familyOf } from './processes.ts'
import { startService } from './service.ts'

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

/** How long it is measured what a worker without work costs per second: a slow machine has more seconds per line. */
const IDLE_MS = 3_000

/**
 * Per line of `bytes`: two runs that differ in their number of lines, so that what a run costs anyway drops out, as does
 * what passing time costs.
 */
export async function lineCosts(folder: string, base_url: string, bytes: number): Promise<WorkerCounts> {
  const file = join(folder, 'counts')
  const preload = fileURLToPath(new URL('./count-process.ts', import.meta.url))
  const service = await startService(
    folder,
    `
models:
  - id: bench
    price: {input_per_mtok: 0.1, output_per_mtok: 0.4}
    upstreams: [{type: openai, base_url: "${base_url}", concurrency_max: 64}]
`,
    [],
    { env: { NODE_OPTIONS: `--import ${preload}`, COUNTS_FILE: file } },
  )
  const [, worker] = familyOf(service.process.pid!)
  const counts = async (): Promise<WorkerCounts> => {
    const path = `${file}-${worker}`
    rmSync(path, { force: true })
    process.kill(worker!, 'SIGUSR2')
    while (!existsSync(path) || readFileSync(path, 'utf8') === '') await setTimeout(10)
    return JSON.parse(readFileSync(path, 'utf8'))
  }
  const run = async (lines: number): Promise<Run> => {
    const input = join(folder, `${lines}.jsonl`)
    await writeLines(input, lines, bytes)
    const file = await service.client.upload(input, 20)
    const [before, begun] = [await counts(), performance.now()]
    const created = await service.client.create(file)
    const { request_counts } = await service.client.completed(created.id, 50)
    if (request_counts.completed !== lines)
      throw new Error(`only ${request_counts.completed} lines were answered`)
    return { before, after: await counts(), ms: performance.now() - begun }
  }
  try {
    await run(WARM)
    const idle: Run = { before: await counts(), after: await setTimeout(IDLE_MS).then(counts), ms: IDLE_MS }
    const [small, large] = [await run(RUNS[0]), await run(RUNS[1])]
    const of = (name: keyof WorkerCounts): number => {
      const did = ({ before, after }: Run): number => after[name] - before[name]
      const passing = (did(idle) / idle.ms) * (large.ms - small.ms)
      return (did(large) - did(small) - passing) / (RUNS[1] - RUNS[0])
    }
    return { heapBytes: of('heapBytes'), statements: of('statements'), socketWrites: of('socketWrites') }
  } finally {
    await service.stop()
  }
}
