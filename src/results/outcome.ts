// What became of one line: the text that its result file gets, its audit record, and what it counts for.
import type { TokenUsage } from '../domain/money.ts'

export interface Outcome {
  /** Its physical line number in the input file. */
  line: number
  part: 'output' | 'error'
  /** One line of that file, without its line break. */
  result: string
  /** One line of the chunk's audit blob, without its line break. */
  audit: string
  cost_nanos: number
  /** Whether it ended because the window closed. */
  expired: boolean
  /** For usage: what it is charged to. */
  model: string | null
  entity: string | null
  usage: TokenUsage | null
}

/** Roughly what it occupies in memory, in bytes. */
export function weight(outcome: Outcome): number {
  return outcome.result.length + outcome.audit.length + 200
}
