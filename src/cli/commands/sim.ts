// sim: runs the simulated model server as a server of its own, for tests and load.
import { type Command, Option } from 'commander'
import { recordOf } from '../../domain/json-record.ts'
import { SIMULATED_FAULTS, type SimulatedFault } from '../../domain/simulated-server.ts'
import type { Shell } from '../shell.ts'
import { aborted, Failure } from '../terminal/failure.ts'
import { commaList, examples, fraction, range, wholeNumber } from '../terminal/option-values.ts'
import { writeLine } from '../terminal/terminal.ts'

interface SimFlags {
  host: string
  port: number
  latencyMs: { min: number; max: number }
  capacity?: number
  contextWindow?: number
  seed: number
  models?: string[]
  log?: string
}

const LATENCY = new Option('--latency-ms <range>', 'latency of an answer: 20, or 100..300')
  .argParser(range)
  .default({ min: 20, max: 20 }, '20')

export function addSim(program: Command, shell: Shell): void {
  const sim = program
    .command('sim')
    .description('run the simulated model server, for tests and load')
    .requiredOption('--port <number>', 'port to listen on, 0 for any free one', wholeNumber(0, 65_535))
    .option('--host <address>', 'address to listen on', '127.0.0.1')
    .addOption(LATENCY)
    .option('--capacity <number>', 'requests in flight beyond which it answers 429', wholeNumber(1))
    .option('--context-window <tokens>', 'tokens beyond which it refuses a request', wholeNumber(1))
    .option('--seed <number>', 'seed that decides which requests get a fault', wholeNumber(0), 0)
    .option('--models <list>', 'models it answers for (default: any)', commaList)
    .option('--log <file>', 'append a line for each request to this file')
  for (const option of Object.values(FAULT_OPTIONS)) sim.addOption(option)
  examples(
    sim.action((flags: SimFlags, command: Command) => runSim(shell, flags, command)),
    'offpeak sim --port 8000',
    'offpeak sim --port 8000 --latency-ms 100..300 --capacity 256 --rate-500 0.01',
  )
}

const FAULT_WORDS: Record<SimulatedFault, string> = {
  '429': 'a 429',
  '500': 'a 500',
  '503': 'a 503',
  hang: 'no answer',
  reset: 'a broken connection',
  garbage: 'an answer that is not JSON',
  missing_usage: 'an answer without usage',
  off_schema: 'an answer that misses its JSON Schema',
}

const FAULT_OPTIONS = recordOf(SIMULATED_FAULTS, (fault) =>
  new Option(
    `--rate-${fault.replaceAll('_', '-')} <fraction>`,
    `share of requests that get ${FAULT_WORDS[fault]}`,
  ).argParser(fraction),
)

function faultsOf(command: Command): Partial<Record<SimulatedFault, number>> {
  const faults: Partial<Record<SimulatedFault, number>> = {}
  let sum = 0
  for (const fault of SIMULATED_FAULTS) {
    const rate: unknown = command.getOptionValue(FAULT_OPTIONS[fault].attributeName())
    if (typeof rate !== 'number' || rate === 0) continue
    faults[fault] = rate
    sum += rate
  }
  if (sum > 1 + 1e-9) throw new Failure(`the --rate options add up to ${sum}; their sum must be at most 1`)
  return faults
}

async function runSim(shell: Shell, flags: SimFlags, command: Command): Promise<void> {
  const signal = shell.interruption()
  const starting = shell.launch.sim({
    host: flags.host,
    port: flags.port,
    latency_ms: flags.latencyMs,
    capacity: flags.capacity ?? null,
    context_window: flags.contextWindow ?? null,
    faults: faultsOf(command),
    seed: flags.seed,
    models: flags.models ?? null,
    log_file: flags.log ?? null,
  })
  const server = await starting.catch((error: unknown) => {
    throw error instanceof RangeError ? new Failure(error.message) : error
  })
  writeLine(shell.terminal.stdout, `offpeak sim listening on ${server.base_url.replace(/\/v1$/, '')}`)
  await aborted(signal)
  await server.close()
}
