// Classifies errors of PostgreSQL: whether to retry, and what to tell the operator.
// Codes: https://www.postgresql.org/docs/current/errcodes-appendix.html

import { DatabaseFailure, DatabaseFull, StatementRejected } from '../store.ts'

/** Conflicts with another transaction; a retry may succeed. */
const CONFLICTS = new Set([
  '40001', // serialization_failure
  '40P01', // deadlock_detected
  '55P03', // lock_not_available: lock_timeout
])

/** read_only_sql_transaction: a standby, or a primary that became one. */
const READ_ONLY = '25006'

const TOO_MANY_CONNECTIONS = '53300'

/** The server is stopping, stopped or starting, or accepts no further connection, or no changes. */
const UNAVAILABLE = new Set([
  '57P01', // admin_shutdown
  '57P02', // crash_shutdown
  '57P03', // cannot_connect_now
  TOO_MANY_CONNECTIONS,
  READ_ONLY,
  '25P03', // idle_in_transaction_session_timeout: this process was suspended, and the server ended the session
  '25P04', // transaction_timeout, since PostgreSQL 17
  '57P05', // idle_session_timeout
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENOTFOUND',
  'EAI_AGAIN',
])

const REJECTIONS = new Set([
  '28000', // invalid_authorization_specification
  '28P01', // invalid_password
  '3D000', // invalid_catalog_name: there is no such database
])

const DISK_FULL = '53100'
/** query_canceled: statement_timeout. */
const CANCELLED = '57014'

/** Messages of the driver without a code. */
const BROKEN =
  /^(Connection terminated|Client has encountered a connection error|timeout exceeded when trying)/

/** PgBouncer passes few parameters on. */
const UNSUPPORTED_PARAMETER = /^unsupported startup parameter/

/**
 * Classes of errors that lie in the data of a statement: cardinality violation, data exception, integrity constraint
 * violation, program limit exceeded, an exception of a trigger.
 */
const DATA_ERROR_CLASSES = new Set(['21', '22', '23', '54', 'P0'])

/** The error as the port names it. */
export function asRejected(error: unknown): unknown {
  return DATA_ERROR_CLASSES.has(codeOf(error).slice(0, 2)) ? new StatementRejected(error) : error
}

export function isConflict(error: unknown): boolean {
  return CONFLICTS.has(codeOf(error))
}

/** The driver waited for an answer until `query_timeout`, and the server may still be working on it. */
export function isUnanswered(error: unknown): error is Error {
  return error instanceof Error && error.message === 'Query read timeout'
}

/** Whether the server takes no changes on this connection; another connection may lead to a server that does. */
export function isReadOnly(error: unknown): error is Error {
  return error instanceof Error && codeOf(error) === READ_ONLY
}

/** Whether the connection is broken or could not be opened; its transaction has ended. */
export function isUnavailable(error: unknown): boolean {
  const code = codeOf(error)
  if (error instanceof Error && UNSUPPORTED_PARAMETER.test(error.message)) return false
  // Class 08: connection exceptions.
  if (UNAVAILABLE.has(code) || code.startsWith('08')) return true
  return isUnanswered(error) || (error instanceof Error && BROKEN.test(error.message))
}

/** The error as the port names it, if the server cannot be reached, does not answer or takes no changes. */
export function outageFailure(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  if (codeOf(error) === DISK_FULL)
    return new DatabaseFull(`cannot grow: its disk is full (${error.message})`, 'Free space there.', error)
  if (codeOf(error) === READ_ONLY)
    return new DatabaseFailure(
      `is read-only (${error.message})`,
      'It may be a standby: have `database` in the configuration lead to the primary.',
      error,
    )
  if (isConflict(error) || codeOf(error) === CANCELLED)
    return new DatabaseFailure(
      `did not get to an answer in time (${error.message})`,
      'Look in pg_stat_activity for what holds locks, or takes its time.',
      error,
    )
  if (codeOf(error) === TOO_MANY_CONNECTIONS)
    return new DatabaseFailure(
      `takes no further connection (${error.message})`,
      'Raise its `max_connections`, or lower `pool_max` in the URL (docs/scaling.md).',
      error,
    )
  if (!isUnavailable(error)) return error
  return new DatabaseFailure(
    `cannot be reached (${error.message || codeOf(error)})`,
    'Start it, or fix `database` in the configuration.',
    error,
  )
}

/** Turns an error at startup into a message if the server or its address is the cause. */
export function startupFailure(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  if (UNSUPPORTED_PARAMETER.test(error.message))
    return new DatabaseFailure(
      `rejects the connection (${error.message})`,
      'It is PgBouncer, whose `ignore_startup_parameters` has to name this parameter (docs/scaling.md, "PgBouncer").',
      error,
    )
  const failure = outageFailure(error)
  if (failure !== error) return failure
  if (REJECTIONS.has(codeOf(error)))
    return new DatabaseFailure(
      `rejects the connection (${error.message})`,
      'Fix `database` in the configuration, or create the role and the database that it names.',
      error,
    )
  return error
}

function codeOf(error: unknown): string {
  const code = typeof error === 'object' && error !== null && 'code' in error ? error.code : ''
  return typeof code === 'string' ? code : ''
}
