// What to run for a number of lines a day: arithmetic on measured figures, as docs/scaling.md explains it.
import { FIGURES, type FigureName } from './capacity-figures.ts'

export interface Load {
  lines_per_day: number
  /** Seconds from sending a line to its answer. */
  latency_s: number
  /** Of a line, input and output together. */
  tokens: number
  /** The busiest hours against the average. */
  peak: number
  /** For how long files are kept. */
  retention_days: number
  /** Lines that one worker may have in flight. */
  concurrency_max: number
}

export interface CapacityPlan {
  lines_per_s: number
  peak_lines_per_s: number
  peak_tokens_per_s: number
  peak_lines_in_flight: number
  stores: 'sqlite and a folder' | 'postgres and a bucket'
  workers: number
  workers_by: 'concurrency' | 'cpu'
  apis: number
  memory_mib: number
  database: { bytes: number; bytes_per_day: number; peak_statements_per_s: number; connections: number }
  bucket: { bytes: number; bytes_per_day: number; peak_requests_per_s: number }
}

/** The figures that each part of a plan is calculated from. */
export const BASED_ON: Readonly<
  Record<'workers' | 'apis' | 'memory_mib' | 'database' | 'bucket', readonly FigureName[]>
> = {
  workers: ['lines_per_s_of_a_worker'],
  apis: ['checked_bytes_per_s_of_a_core'],
  memory_mib: ['memory_mib_of_a_process'],
  database: [
    'statements_per_1000_lines',
    'idle_statements_per_s_of_a_worker',
    'database_bytes_per_1000_lines',
  ],
  bucket: ['bucket_requests_per_1000_lines', 'stored_share_of_input', 'stored_bytes_around_1000_answers'],
}

const SECONDS_PER_DAY = 86_400
/** English text; a rule of thumb, not measured. */
const BYTES_PER_TOKEN = 4
/** The envelope of a request line: custom_id, method, url, roles. */
const LINE_OVERHEAD_BYTES = 200
/** What one process with SQLite and a folder is planned for. */
const ONE_PROCESS_LINES_PER_DAY = 20_000_000
const CONNECTIONS_OF_A_WORKER = 3
/** `pool_max` of an API. */
const CONNECTIONS_OF_AN_API = 10

export function planCapacity(load: Load): CapacityPlan {
  const { lines_per_day, latency_s, tokens, peak, retention_days, concurrency_max } = load
  const lines_per_s = lines_per_day / SECONDS_PER_DAY
  const peakLines = lines_per_s * peak
  const inFlight = peakLines * latency_s
  const byConcurrency = Math.ceil(inFlight / concurrency_max)
  const byCpu = Math.ceil(peakLines / FIGURES.lines_per_s_of_a_worker.value)
  const needed = Math.max(1, byConcurrency, byCpu)
  const alone = needed === 1 && lines_per_day <= ONE_PROCESS_LINES_PER_DAY
  // One more of each, so that one may fail.
  const workers = alone ? 1 : needed + 1
  const lineBytes = tokens * BYTES_PER_TOKEN + LINE_OVERHEAD_BYTES
  const checking = Math.ceil((peakLines * lineBytes) / FIGURES.checked_bytes_per_s_of_a_core.value)
  const apis = alone ? 1 : Math.max(1, checking) + 1
  const databaseBytes = perLine('database_bytes_per_1000_lines') * lines_per_day
  const bucketBytes =
    (lineBytes * FIGURES.stored_share_of_input.value + perLine('stored_bytes_around_1000_answers')) *
    lines_per_day
  return {
    lines_per_s,
    peak_lines_per_s: peakLines,
    peak_tokens_per_s: peakLines * tokens,
    peak_lines_in_flight: inFlight,
    stores: alone ? 'sqlite and a folder' : 'postgres and a bucket',
    workers,
    workers_by: byConcurrency > byCpu ? 'concurrency' : 'cpu',
    apis,
    memory_mib: (workers + apis) * FIGURES.memory_mib_of_a_process.value,
    database: {
      bytes: databaseBytes * retention_days,
      bytes_per_day: databaseBytes,
      peak_statements_per_s:
        peakLines * perLine('statements_per_1000_lines') +
        workers * FIGURES.idle_statements_per_s_of_a_worker.value,
      connections: alone ? 0 : workers * CONNECTIONS_OF_A_WORKER + apis * CONNECTIONS_OF_AN_API,
    },
    bucket: {
      bytes: bucketBytes * retention_days,
      bytes_per_day: bucketBytes,
      peak_requests_per_s: peakLines * perLine('bucket_requests_per_1000_lines'),
    },
  }
}

function perLine(figure: FigureName): number {
  return FIGURES[figure].value / 1000
}
