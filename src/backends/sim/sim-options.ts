// Checks the options of the simulator, and fills in their defaults.
import { SIMULATED_FAULTS, type SimOptions, type SimulatedFault } from '../../domain/simulated-server.ts'

interface Range {
  min: number
  max: number
}

/** The options with every default filled in. */
export interface SimSettings {
  latency_ms: Range
  capacity: number
  retry_after_ms: number | null
  faults: readonly { fault: SimulatedFault; rate: number }[]
  seed: number
  context_window: number
  models: readonly string[] | null
  output_tokens: Range
  streams: boolean
}

/** Throws a RangeError that names the option when one makes no sense. */
export function simSettings(options: SimOptions): SimSettings {
  const faults = SIMULATED_FAULTS.flatMap((fault) => {
    const rate = options.faults?.[fault] ?? 0
    if (!(rate >= 0 && rate <= 1)) throw new RangeError(`faults.${fault} must be between 0 and 1`)
    return rate > 0 ? [{ fault, rate }] : []
  })
  const sum = faults.reduce((total, { rate }) => total + rate, 0)
  // A hair above 1 is what adding up tenths leaves.
  if (sum > 1 + 1e-9) throw new RangeError('the rates of all faults must add up to at most 1')
  return {
    latency_ms: range('latency_ms', options.latency_ms ?? 0, 0),
    capacity: limit('capacity', options.capacity),
    retry_after_ms: options.retry_after_ms ?? null,
    faults,
    seed: options.seed ?? 0,
    context_window: limit('context_window', options.context_window),
    models: options.models ?? null,
    output_tokens: range('output_tokens', options.output_tokens ?? { min: 16, max: 96 }, 1),
    streams: options.streams ?? false,
  }
}

function range(name: string, value: number | Range, least: number): Range {
  const { min, max } = typeof value === 'number' ? { min: value, max: value } : value
  if (!(min >= least && max >= min)) {
    throw new RangeError(`${name} must be at least ${least}, and its min no more than its max`)
  }
  return { min, max }
}

function limit(name: string, value: number | null | undefined): number {
  if (value === null || value === undefined) return Number.POSITIVE_INFINITY
  if (!(value >= 1)) throw new RangeError(`${name} must be at least 1`)
  return value
}
