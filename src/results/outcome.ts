// What became of one line: the text that its result file gets, its audit record, and what it counts for.
import type { EndedLine } from '../ledger/tally.ts'

/** With what the ledger needs to charge it. */
export interface Outcome extends EndedLine {
  /** Its physical line number in the input file. */
  line: number
  /** One line of that file, without its line break. */
  result: string
  /** One line of the chunk's audit blob, without its line break. */
  audit: string
  /** Whether it ended because the window closed. */
  expired: boolean
}

/** Roughly what it occupies in memory, in bytes. */
export function weight(outcome: Outcome): number {
  return outcome.result.length + outcome.audit.length + 200
}
