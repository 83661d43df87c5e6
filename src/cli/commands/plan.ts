// plan: what to run for a number of lines a day, from measured figures.
import { type Command, InvalidArgumentError } from 'commander'
import type { Shell } from '../shell.ts'
import { counted, humanBytes, humanCount, humanRate } from '../terminal/format.ts'
import { examples, wholeNumber, withJson } from '../terminal/option-values.ts'
import { printJson, printTable } from '../terminal/table.ts'
import { type Output, writeLine } from '../terminal/terminal.ts'
import { FIGURES } from './capacity-figures.ts'
import { BASED_ON, type CapacityPlan, type Load, planCapacity } from './capacity-plan.ts'

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
  printTable(
    output,
    ['PART', 'RUN', 'BECAUSE', 'MEASURED BY'],
    rows.map(([part, run, why]) => [NAMES[part], run, why, commandsOf(part)]),
  )
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

/** `5000000`, `5M`, `0.5` */
function quantity(text: string): number {
  const match = /^(\d+(?:\.\d+)?(?:e\d+)?)([kmb]?)$/i.exec(text.replaceAll('_', ''))
  const value = Number(match?.[1] ?? Number.NaN) * (UNITS[(match?.[2] ?? '').toLowerCase()] ?? Number.NaN)
  if (value > 0) return value
  throw new InvalidArgumentError('Expected a number above 0, such as 0.5, 700 or 5M.')
}
