// sim: runs the simulated model server as a server of its own, for tests and load.
import { type Command, Option } from 'commander'
import { recordOf } from '../../domain/json-record.ts'
import { type EngineOptions, SIMULATED_FAULTS, type SimulatedFault } from '../../domain/simulated-server.ts'
import type { Shell } from '../shell.ts'
import { aborted, Failure } from '../terminal/failure.ts'
import { commaList, examples, fraction, milliseconds, range, wholeNumber } from '../terminal/option-values.ts'
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
  engine?: true
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
    .option('--engine', 'answers take the time of a simulated engine: batching, KV cache, queue, /metrics')
  for (const option of [...Object.values(ENGINE_OPTIONS), ...Object.values(FAULT_OPTIONS)])
    sim.addOption(option)
  examples(
    sim.action((flags: SimFlags, command: Command) => runSim(shell, flags, command)),
    'offpeak sim --port 8000',
    'offpeak sim --port 8000 --latency-ms 100..300 --capacity 256 --rate-500 0.01',
    'offpeak sim --port 8000 --engine --max-num-seqs 64 --scheduling-policy priority',
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

/** By their names in the engine. Absent ones are as the engine has them. */
const ENGINE_OPTIONS: Readonly<Record<keyof EngineOptions, Option>> = {
  max_num_seqs: ofEngine('--max-num-seqs <number>', 'requests in a step (default: 256)', wholeNumber(1)),
  max_num_batched_tokens: ofEngine(
    '--max-num-batched-tokens <number>',
    'tokens computed in a step (default: 2048)',
    wholeNumber(1),
  ),
  kv_blocks: ofEngine('--kv-blocks <number>', 'blocks of its KV cache (default: 25000)', wholeNumber(1)),
  block_tokens: ofEngine('--block-tokens <number>', 'tokens of a block (default: 16)', wholeNumber(1)),
  prefix_caching: new Option('--no-prefix-caching', 'of the engine: prompts that begin alike share nothing'),
  queue_max: ofEngine('--queue-max <number>', 'waiting requests beyond which it answers 503', wholeNumber(1)),
  scheduling_policy: new Option(
    '--scheduling-policy <policy>',
    'of the engine: which request is next (default: fcfs)',
  ).choices(['fcfs', 'priority']),
  step_ms: ofEngine('--step-ms <number>', 'time of every step (default: 4.6)', milliseconds),
  seq_ms: ofEngine(
    '--seq-ms <number>',
    'more for each request that gets a token (default: 0.03)',
    milliseconds,
  ),
  prefill_token_ms: ofEngine(
    '--prefill-token-ms <number>',
    'more for each prompt token (default: 0.02)',
    milliseconds,
  ),
}

function ofEngine(flags: string, text: string, read: (text: string) => number): Option {
  return new Option(flags, `of the engine: ${text}`).argParser(read)
}

function engineOf(command: Command, isOn: boolean): EngineOptions | null {
  const given = Object.entries(ENGINE_OPTIONS)
    .map(([name, option]) => [name, command.getOptionValue(option.attributeName())])
    // The simulated engine caches prefixes unless it is told otherwise.
    .filter(([, value]) => value !== undefined && value !== true)
  if (isOn) return Object.fromEntries(given)
  const [stray] = given
  if (stray !== undefined)
    throw new Failure(`--${stray[0].replaceAll('_', '-')} is an option of the simulated engine: add --engine`)
  return null
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
    engine: engineOf(command, flags.engine === true),
  })
  const server = await starting.catch((error: unknown) => {
    throw error instanceof RangeError ? new Failure(error.message) : error
  })
  writeLine(shell.terminal.stdout, `offpeak sim listening on ${server.base_url.replace(/\/v1$/, '')}`)
  await aborted(signal)
  await server.close()
}
