// What went wrong in PostgreSQL, as far as it decides whether to try again.
// Codes: https://www.postgresql.org/docs/current/errcodes-appendix.html

import { DatabaseFailure, StatementRejected } from '../store.ts'

/** Another transaction was in the way; the same work may succeed now. */
const CONFLICTS = new Set([
  '40001', // serialization_failure
  '40P01', // deadlock_detected
  '55P03', // lock_not_available: lock_timeout
])

/** The server is going, gone or coming back, or cannot take one more connection. */
const UNAVAILABLE = new Set([
  '57P01', // admin_shutdown
  '57P02', // crash_shutdown
  '57P03', // cannot_connect_now
  '53300', // too_many_connections
  '25P03', // idle_in_transaction_session_timeout: this process was held up, and the server ended the session
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENOTFOUND',
  'EAI_AGAIN',
])

const REFUSALS = new Set([
  '28000', // invalid_authorization_specification
  '28P01', // invalid_password
  '3D000', // invalid_catalog_name: there is no such database
])

/** What the driver says without a code. */
const BROKEN =
  /^(Connection terminated|Client has encountered a connection error|timeout exceeded when trying)/

/**
 * Classes of errors that lie in the data of a statement: cardinality violation, data exception, integrity constraint
 * violation, program limit exceeded, an exception of a trigger.
 */
const REFUSED_CLASSES = new Set(['21', '22', '23', '54', 'P0'])

/** The error as the port names it. */
export function asRefused(error: unknown): unknown {
  return REFUSED_CLASSES.has(codeOf(error).slice(0, 2)) ? new StatementRejected(error) : error
}

export function isConflict(error: unknown): boolean {
  return CONFLICTS.has(codeOf(error))
}

/** The connection is broken or could not be made: whatever was under way on it has ended. */
export function isUnavailable(error: unknown): boolean {
  const code = codeOf(error)
  // Class 08: connection exceptions.
  if (UNAVAILABLE.has(code) || code.startsWith('08')) return true
  return error instanceof Error && BROKEN.test(error.message)
}

/** `error`, which kept a process from starting, in words where it is the server's or its address's fault. */
export function startupFailure(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  if (isUnavailable(error))
    return new DatabaseFailure(
      `cannot be reached (${error.message || codeOf(error)})`,
      'Start it, or mend `database` in the configuration.',
      error,
    )
  if (REFUSALS.has(codeOf(error)))
    return new DatabaseFailure(
      `does not let us in (${error.message})`,
      'Mend `database` in the configuration, or make the role and the database that it names.',
      error,
    )
  return error
}

function codeOf(error: unknown): string {
  const code = typeof error === 'object' && error !== null && 'code' in error ? error.code : ''
  return typeof code === 'string' ? code : ''
}
