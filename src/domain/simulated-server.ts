// Describes the simulated model server: the faults that it can make, its options and their defaults. `429`, `500`,
// `503`: that status. `hang`: never answers. `reset`: breaks the connection. `garbage`: a 200 without a completion.
// `missing_usage`: no token counts. `off_schema`: an object without the fields that the JSON Schema of the request has.

export const SIMULATED_FAULTS = [
  '429',
  '500',
  '503',
  'hang',
  'reset',
  'garbage',
  'missing_usage',
  'off_schema',
] as const
export type SimulatedFault = (typeof SIMULATED_FAULTS)[number]

/** The fraction of requests, 0 to 1, that meets each fault. */
export type FaultRates = Readonly<Partial<Record<SimulatedFault, number>>>

/** The options of the simulated server, whose behaviour depends only on options and the bytes of a request. */
export interface SimOptions {
  /** Latency of an answer: fixed, or between two bounds, equal for equal requests. Default 0. */
  latency_ms?: number | { min: number; max: number }
  /** The limit of concurrent requests; further ones get a 429. Default null: none. */
  capacity?: number | null
  /** The wait that a 429 or 503 asks for. Default null: none. */
  retry_after_ms?: number | null
  /** The fraction of attempts, 0 to 1, that meets each fault; their sum is at most 1. */
  faults?: FaultRates
  /** The seed that selects the requests with faults. Default 0. */
  seed?: number
  /** The limit of input and output tokens together; a request above it is rejected. Default null: none. */
  context_window?: number | null
  /** The models that the server has. Default null: any. */
  models?: readonly string[] | null
  /** Tokens of an answer without a limit. Default 16 to 96. */
  output_tokens?: number | { min: number; max: number }
}

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
}

/** Fills in the defaults. Throws a RangeError that names an invalid option. */
export function simSettings(options: SimOptions): SimSettings {
  const faults = SIMULATED_FAULTS.flatMap((fault) => {
    const rate = options.faults?.[fault] ?? 0
    if (!(rate >= 0 && rate <= 1)) throw new RangeError(`faults.${fault} must be between 0 and 1`)
    return rate > 0 ? [{ fault, rate }] : []
  })
  const sum = faults.reduce((total, { rate }) => total + rate, 0)
  // The sum of tenths may exceed 1 by a rounding error.
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
