// plan: prints the workers, APIs and stores that a number of lines a day needs, from measured figures.
import { type Command, InvalidArgumentError } from 'commander'
import type { Shell } from '../shell.ts'
import { examples, wholeNumber, withJson } from '../terminal/option-values.ts'
import {
  counted,
  humanBytes,
  humanCount,
  humanRate,
  type Output,
  printJson,
  printTable,
  writeLine,
} from '../terminal/terminal.ts'

interface PlanFlags {
  linesPerDay: number
  latency: number
  tokens: number
  peak: number
  retention: number
  concurrency: number
  json?: boolean
}

export function addPlan(program: Command, shell: Shell): void {
  const { stdout } = shell.terminal
  const plan = program
    .command('plan')
    .description('what to run for a number of lines a day: workers, APIs, database and bucket')
    .requiredOption('--lines-per-day <number>', 'such as 5000000, 5M or 1B', quantity)
    .requiredOption('--latency <seconds>', 'from sending a line to its answer', quantity)
    .requiredOption('--tokens <number>', 'of a line, input and output together', quantity)
    .option('--peak <factor>', 'the busiest hours against the average', quantity, 3)
    .option('--retention <days>', 'for how long files are kept', wholeNumber(1), 90)
    .option('--concurrency <lines>', 'worker.concurrency_max', wholeNumber(1), 2048)
  examples(
    withJson(plan).action((flags: PlanFlags) => {
      const load: Load = {
        lines_per_day: flags.linesPerDay,
        latency_s: flags.latency,
        tokens: flags.tokens,
        peak: flags.peak,
        retention_days: flags.retention,
        concurrency_max: flags.concurrency,
      }
      const found = planCapacity(load)
      if (flags.json) printJson(stdout, { load, plan: found, figures: FIGURES })
      else printPlan(stdout, load, found)
    }),
    'offpeak plan --lines-per-day 100M --latency 10 --tokens 700',
    'offpeak plan --lines-per-day 1B --latency 2 --tokens 300 --json',
  )
}

function printPlan(output: Output, load: Load, plan: CapacityPlan): void {
  const { database, bucket } = plan
  writeLine(
    output,
    `${humanRate(plan.lines_per_s)} on average, ${humanRate(plan.peak_lines_per_s)} at ${load.peak} times that: ` +
      `${counted(Math.ceil(plan.peak_lines_in_flight), 'line')} in flight, and ` +
      `${counted(Math.ceil(plan.peak_tokens_per_s), 'token')}/s from the model servers.`,
  )
  writeLine(output, '')
  const one = plan.stores === 'sqlite and a folder'
  const rows: [part: keyof typeof BASED_ON, run: string, why: string][] = [
    [
      'workers',
      one ? '1, in "offpeak serve"' : String(plan.workers),
      one
        ? ''
        : plan.workers_by === 'concurrency'
          ? 'bounded by lines in flight'
          : 'bounded by CPU, one core each',
    ],
    ['apis', one ? '1, in "offpeak serve"' : String(plan.apis), one ? '' : 'behind a balancer'],
    ['memory_mib', `${humanBytes(plan.memory_mib * 1024 * 1024)}`, 'all processes together'],
    [
      'database',
      `${one ? 'SQLite' : 'PostgreSQL'}, ${humanBytes(database.bytes)}`,
      `${humanBytes(database.bytes_per_day)} a day; ${humanCount(Math.ceil(database.peak_statements_per_s))} statements/s` +
        (one ? '' : `; ${counted(database.connections, 'connection')}`),
    ],
    [
      'bucket',
      `${one ? 'a folder' : 'a bucket'}, ${humanBytes(bucket.bytes)}`,
      `${humanBytes(bucket.bytes_per_day)} a day; ${counted(Math.ceil(bucket.peak_requests_per_s), 'request')}/s`,
    ],
  ]
  printTable(output, rows, {
    PART: ([part]) => NAMES[part],
    RUN: ([, run]) => run,
    BECAUSE: ([, , why]) => why,
    'MEASURED BY': ([part]) => commandsOf(part),
  })
  writeLine(output, '')
  writeLine(
    output,
    `Sizes are for ${counted(load.retention_days, 'day')} of retention. ` +
      `${one ? '' : 'Workers and APIs count one more than needed, so that one may fail. '}` +
      'The figures come from two cores: run the commands on your machines (docs/scaling.md).',
  )
}

const NAMES: Readonly<Record<keyof typeof BASED_ON, string>> = {
  workers: 'workers',
  apis: 'APIs',
  memory_mib: 'memory',
  database: 'database',
  bucket: 'blobs',
}

function commandsOf(part: keyof typeof BASED_ON): string {
  return [...new Set(BASED_ON[part].map((figure) => FIGURES[figure].command))].join(', ')
}

const UNITS: Readonly<Record<string, number>> = { '': 1, k: 1e3, m: 1e6, b: 1e9 }

/** Parses a number of lines: `5000000`, `5M`, `0.5`. */
function quantity(text: string): number {
  const match = /^(\d+(?:\.\d+)?(?:e\d+)?)([kmb]?)$/i.exec(text.replaceAll('_', ''))
  const value = Number(match?.[1] ?? Number.NaN) * (UNITS[(match?.[2] ?? '').toLowerCase()] ?? Number.NaN)
  if (value > 0) return value
  throw new InvalidArgumentError('Expected a number above 0, such as 0.5, 700 or 5M.')
}

/** The load of a plan, which is arithmetic on measured figures, as docs/scaling.md explains it. */
interface Load {
  lines_per_day: number
  /** The latency: seconds from sending a line to its answer. */
  latency_s: number
  /** The tokens of a line, input and output together. */
  tokens: number
  /** The factor from the average load to that of the busiest hours. */
  peak: number
  /** The days for which files are kept. */
  retention_days: number
  /** The lines in flight of one worker. */
  concurrency_max: number
}

type CapacityPlan = ReturnType<typeof planCapacity>

/** The figures from which each part of a plan is calculated. */
const BASED_ON = {
  workers: ['lines_per_s_of_a_worker'],
  apis: ['checked_bytes_per_s_of_a_core'],
  memory_mib: ['memory_mib_of_a_process'],
  database: ['statements_per_1000_lines', 'statements_per_s_of_a_worker', 'database_bytes_per_1000_lines'],
  bucket: ['bucket_requests_per_1000_lines', 'stored_share_of_input', 'stored_bytes_around_1000_answers'],
} as const satisfies Record<string, readonly FigureName[]>

const SECONDS_PER_DAY = 86_400
/** The bytes of a token of English text: a rule of thumb, not measured. */
const BYTES_PER_TOKEN = 4
/** The bytes of a request line beside its text: custom_id, method, url, roles. */
const LINE_OVERHEAD_BYTES = 200
/** The load up to which one process with SQLite and a folder is enough. */
const ONE_PROCESS_LINES_PER_DAY = 20_000_000
/** The database connections of a worker with work (bench/scaling.ts). */
const CONNECTIONS_OF_A_WORKER = 5
/** The database connections of an API, its `pool_max`. */
const CONNECTIONS_OF_AN_API = 10

export function planCapacity(load: Load) {
  const { lines_per_day, latency_s, tokens, peak, retention_days, concurrency_max } = load
  const lines_per_s = lines_per_day / SECONDS_PER_DAY
  const peakLines = lines_per_s * peak
  const inFlight = peakLines * latency_s
  const byConcurrency = Math.ceil(inFlight / concurrency_max)
  const byCpu = Math.ceil(peakLines / FIGURES.lines_per_s_of_a_worker.value)
  const needed = Math.max(1, byConcurrency, byCpu)
  const alone = needed === 1 && lines_per_day <= ONE_PROCESS_LINES_PER_DAY
  // One more process of each role, so that one may fail.
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
        workers * FIGURES.statements_per_s_of_a_worker.value,
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

/**
 * A measured figure of `offpeak plan`, with the command that measures it. docs/scaling.md shows the same figures; a
 * test compares the two.
 */
interface Figure {
  value: number
  /** The measured number as docs/scaling.md prints it. */
  text: string
  command: string
}

export const FIGURES = {
  lines_per_s_of_a_worker: {
    value: 5000,
    text: '5,000 to 6,500 lines/s',
    command: 'node bench/dispatch.ts --lines 100000',
  },
  statements_per_1000_lines: { value: 16.3, text: 'up to 16.3', command: 'node bench/stores.ts' },
  statements_per_s_of_a_worker: {
    value: 35,
    text: '34 or 35 while it has work',
    command: 'node bench/scaling.ts',
  },
  database_bytes_per_1000_lines: {
    value: 1475,
    text: '1,475 bytes',
    command: 'node bench/footprint.ts --lines 100000',
  },
  bucket_requests_per_1000_lines: {
    value: 3.6,
    text: '3.2, and 3.6 in the first round',
    command: 'node bench/stores.ts',
  },
  stored_share_of_input: {
    value: 0.355,
    text: '355 KB of input (a third of what was uploaded',
    command: 'node bench/footprint.ts --lines 100000',
  },
  stored_bytes_around_1000_answers: {
    value: 14_000,
    text: '14 KB around the answers',
    command: 'node bench/footprint.ts --lines 100000',
  },
  checked_bytes_per_s_of_a_core: {
    value: 360_000_000,
    text: '360 to 1,350 MB/s',
    command: 'node bench/ingest.ts --megabytes 100',
  },
  memory_mib_of_a_process: { value: 300, text: '300 MiB a process', command: 'node bench/memory.ts' },
} as const satisfies Record<string, Figure>

type FigureName = keyof typeof FIGURES
