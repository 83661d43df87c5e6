// The outcome of one line: its result line, its audit record, and the values that the ledger needs to charge it.
import type { ErrorCode } from '../domain/errors.ts'
import type { EndedLine } from '../ledger/tally.ts'

/** With what the ledger needs to charge it. */
export interface Outcome extends EndedLine {
  /** Its physical line number in the input file. */
  line: number
  /** One line of the result file with its line break, as bytes, because strings would stay on the heap until the seal. */
  result: Buffer
  /** One line of the chunk's audit blob, its line break included. */
  audit: Buffer
  /** `ok`, or the code of its error. */
  code: 'ok' | ErrorCode
  /** The message of its error; empty where it succeeded. */
  message: string
  /** Whether the usage is what the server reported. */
  usageByServer: boolean
  /** Whether the batch expired before the line was finished. */
  expired: boolean
}

/** Its approximate size in memory, in bytes. */
export function weight(outcome: Pick<Outcome, 'result' | 'audit'>): number {
  return outcome.result.length + outcome.audit.length + 200
}
