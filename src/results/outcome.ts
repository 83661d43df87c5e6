// What became of one line: the text that its result file gets, its audit record, and what it counts for.
import type { ErrorCode } from '../domain/errors.ts'
import type { EndedLine } from '../ledger/tally.ts'

/** With what the ledger needs to charge it. */
export interface Outcome extends EndedLine {
  /** Its physical line number in the input file. */
  line: number
  /** One line of that file, its line break included. As bytes: text would weigh on the heap until the chunk is sealed. */
  result: Buffer
  /** One line of the chunk's audit blob, its line break included. */
  audit: Buffer
  /** `ok`, or the code of its error. */
  code: 'ok' | ErrorCode
  /** Whether the usage is what the server reported. */
  usageByServer: boolean
  /** Whether it ended because the window closed. */
  expired: boolean
}

/** Roughly what it occupies in memory, in bytes. */
export function weight(outcome: Pick<Outcome, 'result' | 'audit'>): number {
  return outcome.result.length + outcome.audit.length + 200
}
