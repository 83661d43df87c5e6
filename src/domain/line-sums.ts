// The sums over finished lines, one row for each sum: of a batch, and of a day by entity and model. Columns of the
// database (store/schema.ts), the ledger, the API and its documentation come from this table.
import type { TokenUsage } from './money.ts'

/** Facts about a finished line from which sums are computed. */
export interface SummedLine {
  part: 'output' | 'error'
  /** The token usage; null for a line without a result. */
  usage: TokenUsage | null
  cost_nanos: number
  /** The cost that a line saved by sharing an identical line's answer; null for other lines. */
  saved_nanos: number | null
  /** The cost that cached prompt tokens saved; absent: none. */
  cache_saved_nanos?: number
  /** Whether the line failed because it was never sent. */
  isNotRun?: boolean
  /** Whether the line was sent to a server or a batch API. */
  wasSent?: boolean
  /** Whether the line was asked again, and whether its final answer has a fault. */
  isReasked?: boolean
  isFaulty?: boolean
}

export interface LineSum {
  /** The value that a line adds to the sum. */
  of: (line: SummedLine) => number
  /** The tables with a column for the sum: the number of the migration that adds the column. */
  batches?: number
  usage_days?: number
  /** The description of the sum in a usage report. */
  text?: string
}

export const LINE_SUMS = {
  succeeded: {
    of: ({ part }) => (part === 'output' ? 1 : 0),
    usage_days: 1,
    text: 'With a result; only these cost anything.',
  },
  failed: { of: ({ part }) => (part === 'error' ? 1 : 0), batches: 1, usage_days: 1 },
  not_run: {
    of: ({ isNotRun }) => (isNotRun ? 1 : 0),
    batches: 1,
    usage_days: 1,
    text: 'Of the failed lines, those that were never sent: they ended with their batch, or at a limit.',
  },
  requests: {
    of: ({ wasSent }) => (wasSent ? 1 : 0),
    usage_days: 1,
    text: 'Lines that were sent, each once: not those that share an answer, that no server could take, or that ended while nothing was reserved under a limit for their next attempt.',
  },
  prompt_tokens: { of: counted('prompt_tokens'), batches: 1, usage_days: 1 },
  completion_tokens: { of: counted('completion_tokens'), batches: 1, usage_days: 1 },
  total_tokens: { of: counted('total_tokens'), batches: 1, usage_days: 1 },
  cached_tokens: {
    of: counted('cached_tokens'),
    batches: 1,
    usage_days: 1,
    text: 'Of the prompt tokens, those that servers took from their caches.',
  },
  cache_write_tokens: {
    of: counted('cache_write_tokens'),
    batches: 1,
    usage_days: 1,
    text: 'Of the prompt tokens, those that servers wrote to their caches.',
  },
  cache_write_1h_tokens: {
    of: counted('cache_write_1h_tokens'),
    batches: 1,
    usage_days: 1,
    text: 'Of `cache_write_tokens`, those that servers keep for an hour.',
  },
  reasoning_tokens: {
    of: counted('reasoning_tokens'),
    batches: 1,
    usage_days: 1,
    text: 'Of the completion tokens, those that models thought with.',
  },
  cost_nanos: { of: ({ cost_nanos }) => cost_nanos, batches: 1, usage_days: 1 },
  shared_lines: { of: ({ saved_nanos }) => (saved_nanos === null ? 0 : 1), batches: 1 },
  saved_nanos: { of: ({ saved_nanos }) => saved_nanos ?? 0, batches: 1 },
  cache_saved_nanos: { of: ({ cache_saved_nanos = 0 }) => cache_saved_nanos, batches: 1 },
  reasked_lines: { of: ({ isReasked }) => (isReasked ? 1 : 0), batches: 1 },
  faulty_lines: { of: ({ isFaulty }) => (isFaulty ? 1 : 0), batches: 1 },
} as const satisfies Record<keyof TokenUsage, LineSum> & Record<string, LineSum>

type LineSums = typeof LINE_SUMS
export type LineSumName = keyof LineSums

export const LINE_SUM_NAMES = Object.keys(LINE_SUMS) as LineSumName[]

export type SumOf<Table extends 'batches' | 'usage_days'> = {
  [Name in LineSumName]: LineSums[Name] extends Record<Table, number> ? Name : never
}[LineSumName]

export const BATCH_SUMS = LINE_SUM_NAMES.filter(
  (name): name is SumOf<'batches'> => 'batches' in LINE_SUMS[name],
)
export const DAY_SUMS = LINE_SUM_NAMES.filter(
  (name): name is SumOf<'usage_days'> => 'usage_days' in LINE_SUMS[name],
)

function counted(name: keyof TokenUsage) {
  return ({ usage }: SummedLine): number => usage?.[name] ?? 0
}
