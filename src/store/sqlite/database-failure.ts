// Turns errors of SQLite that its file or disk causes into messages that name the file and what to do.
// Result codes: https://www.sqlite.org/rescode.html
import { statfsSync } from 'node:fs'
import { dirname } from 'node:path'
import { DatabaseDamaged, DatabaseFailure, DatabaseFull, StatementRejected } from '../store.ts'

const DAMAGED = {
  what: 'is damaged',
  advice: 'Stop the service and restore the database from a backup; "offpeak doctor" says what is damaged.',
}
const IO_ERROR = 10
const FULL = { what: 'cannot grow: its disk is full', advice: 'Free space there.' }
/** With less, SQLite cannot make the files beside the database, and says no more than that it failed. */
const FREE_BYTES_MIN = 128 * 1024
const FAILURES = new Map<number, { what: string; advice: string }>([
  // SQLITE_READONLY
  [8, { what: 'may not be written to', advice: 'Make the file, its folder and the disk writable.' }],
  [IO_ERROR, { what: 'cannot be read or written', advice: 'The disk fails: look into the system log.' }],
  // SQLITE_CORRUPT
  [11, DAMAGED],
  // SQLITE_FULL
  [13, FULL],
  // SQLITE_CANTOPEN
  [14, { what: 'cannot be opened', advice: 'Its folder must exist and be writable for this user.' }],
  // SQLITE_NOTADB
  [26, DAMAGED],
])

/** Runs `work` on the database at `path`. */
export function withFailureMessage<T>(path: string, work: () => T): T {
  try {
    return work()
  } catch (error) {
    const code = codeOf(error)
    const failure = code === IO_ERROR && isDiskFull(path) ? FULL : FAILURES.get(code)
    if (!failure || !(error instanceof Error)) throw error
    const Failure = failure === DAMAGED ? DatabaseDamaged : failure === FULL ? DatabaseFull : DatabaseFailure
    throw new Failure(`${path} ${failure.what} (${error.message})`, failure.advice, error)
  }
}

function isDiskFull(path: string): boolean {
  try {
    const { bavail, bsize } = statfsSync(dirname(path))
    return bavail * bsize < FREE_BYTES_MIN
  } catch {
    return false
  }
}

/** Result codes of errors that lie in the data of a statement: TOOBIG, CONSTRAINT, MISMATCH, RANGE. */
const DATA_ERRORS = new Set([18, 19, 20, 25])

/** The error as the port names it. A value that cannot be bound is no value of SQLite. */
export function asRejected(error: unknown): unknown {
  const isData = DATA_ERRORS.has(codeOf(error)) || error instanceof UnbindableValue
  return isData ? new StatementRejected(error) : error
}

export class UnbindableValue extends TypeError {}

/** The primary result code: extended ones keep theirs in higher bits. */
export function codeOf(error: unknown): number {
  return error instanceof Error && 'errcode' in error ? Number(error.errcode) & 0xff : 0
}
