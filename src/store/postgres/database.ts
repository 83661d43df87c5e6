// Connections to PostgreSQL that survive its restarts, and the meaning of its errors. A broken connection leaves the
// pool; a caller that asks for one while the server is unavailable waits for a limited time.
import type { PostgresPool, PostgresPoolClient, PostgresQueryResult } from 'kysely'
import { type CustomTypesConfig, Pool, type PoolConfig, types } from 'pg'
import { type Clock, sleep } from '../../domain/clock.ts'
import { storableText } from '../../domain/text.ts'
import { DatabaseFailure, DatabaseFull, StatementRejected } from '../store.ts'

export function openPool(config: PoolConfig): Pool {
  const pool = new Pool({ ...config, types: numberTypes })
  // An idle connection that breaks must not end the process; the pool opens a new one.
  pool.on('error', () => {})
  pool.on('connect', (client) => client.on('error', () => {}))
  return pool
}

/** A pool that retries until a connection is open, but not after that. `onWaiting` gets the errors of the retries. */
export function connectingPool(
  pool: Pool,
  patience: RetryPlan,
  onWaiting: (error: unknown) => void,
): PostgresPool {
  const remedyOf = (error: unknown): Remedy => {
    const remedy = untilAvailable(error)
    if (remedy !== null) onWaiting(error)
    return remedy
  }
  return {
    options: pool.options,
    async connect() {
      try {
        return await withRetries(patience, () => pool.connect(), remedyOf)
      } catch (error) {
        throw connectFailure(error)
      }
    },
    end: () => pool.end(),
  }
}

/**
 * A pool for transactions. It drops a connection on which a statement timed out, since the next statement, such as
 * ROLLBACK, would wait as long again; and one to a server that is read-only.
 */
export function answeringPool(pool: Pool): PostgresPool {
  const connect = async (): Promise<PostgresPoolClient> => {
    const client = await pool.connect()
    let useless: Error | null = null
    const query = queryWithStorableTexts(async (text, parameters) => {
      if (useless) throw useless
      try {
        return await client.query(text, parameters)
      } catch (error) {
        if (isUnanswered(error) || isReadOnly(error)) useless = error
        throw error
      }
    })
    return { query, release: (discard) => client.release(useless ?? discard) }
  }
  return { options: pool.options, connect, end: () => pool.end() }
}

/** A pool for single statements that change nothing, which it repeats on another connection. */
export function readingPool(pool: Pool, patience: RetryPlan): PostgresPool {
  const query = queryWithStorableTexts(async (text, parameters) => {
    try {
      return await withRetries(patience, () => pool.query(text, parameters), untilAvailable)
    } catch (error) {
      throw outageFailure(error)
    }
  })
  const client: PostgresPoolClient = { query, release() {} }
  return { options: pool.options, connect: async () => client, end: async () => {} }
}

/**
 * Runs a query with storable texts only, since servers and callers may send others. The types of Kysely's port overload
 * this with cursors, which are not used here.
 */
function queryWithStorableTexts(
  ask: (text: string, parameters: unknown[]) => Promise<unknown>,
): PostgresPoolClient['query'] {
  function query<R>(text: string, parameters: ReadonlyArray<unknown>): Promise<PostgresQueryResult<R>>
  function query(cursor: never): never
  function query(text: string, parameters: ReadonlyArray<unknown> = []): unknown {
    return ask(
      text,
      parameters.map((value) => (typeof value === 'string' ? storableText(value) : value)),
    )
  }
  return query
}

function untilAvailable(error: unknown): Remedy {
  return isUnavailable(error) ? 'outage' : null
}

// Integers of 8 bytes arrive as numbers: money, times, sizes and counts all fit, and any other value throws rather than
// being rounded.

const INT8 = types.builtins.INT8
/** PostgreSQL's type of a sum over INT8. */
const NUMERIC = types.builtins.NUMERIC

const numberTypes: CustomTypesConfig = {
  getTypeParser(oid, format) {
    if ((oid === INT8 || oid === NUMERIC) && format !== 'binary') return safeNumber
    return types.getTypeParser(oid, format)
  },
}

/** The number of a text. Throws a RangeError if a number cannot hold every digit. */
function safeNumber(text: string): number {
  const value = Number(text)
  if (Number.isInteger(value) ? !Number.isSafeInteger(value) : String(value) !== text)
    throw new RangeError(`the database holds ${text}, which is more than a number can hold exactly`)
  return value
}

// Retries while PostgreSQL restarts, fails over or settles a conflict: soon after the first failure, then at growing
// intervals with random jitter.

const CONFLICT_WAIT_MS = { min: 5, max: 200 }
const OUTAGE_WAIT_MS = { min: 50, max: 1_000 }

/** The remedy for a failure: a retry, now or once the server may be back; null: none. */
export type Remedy = 'conflict' | 'outage' | null

interface RetryPlan {
  clock: Clock
  /** The time for which one call is retried, in ms. */
  for_ms: number
}

/** Retries `attempt`. Throws the last error when the time is over, and at once an error without a remedy. */
export async function withRetries<T>(
  { clock, for_ms }: RetryPlan,
  attempt: () => Promise<T>,
  remedyOf: (error: unknown) => Remedy,
): Promise<T> {
  const until = clock.now() + for_ms
  for (let tries = 0; ; tries++) {
    try {
      return await attempt()
    } catch (error) {
      const remedy = remedyOf(error)
      if (remedy === null) throw error
      const { min, max } = remedy === 'conflict' ? CONFLICT_WAIT_MS : OUTAGE_WAIT_MS
      const waitMs = Math.min(max, min * 2 ** Math.min(tries, 10)) * (0.5 + Math.random())
      if (clock.now() + waitMs > until) throw error
      await sleep(clock, waitMs)
    }
  }
}

// The settings in the URL of a database: its location, how to reach it, and how many connections to keep. The URL may
// have the driver's parameters (host, user, password, sslmode, sslrootcert, application_name, options, …) and a few of
// Offpeak's own.

const IDLE_IN_TRANSACTION_MS = 15_000
const KEEP_ALIVE_MS = 10_000

/** The parameters of Offpeak's own with their defaults, whole numbers of at least 1. */
const OURS = {
  /** Connections per process. A transaction holds one for a few round trips. */
  pool_max: 10,
  statement_timeout_ms: 30_000,
  lock_timeout_ms: 10_000,
  connect_timeout_ms: 5_000,
  /** The time after a statement's timeout in which even its error must arrive; then the network is broken. */
  answer_extra_ms: 5_000,
} as const
type OurParameter = keyof typeof OURS

/** Reads a database URL. Throws a RangeError that names the wrong parameter, without any password. */
export function readAddress(url: string): PoolConfig {
  const address = new URL(url)
  const take = (name: OurParameter): number => {
    const text = address.searchParams.get(name)
    address.searchParams.delete(name)
    if (text === null) return OURS[name]
    const value = Number(text)
    if (!Number.isSafeInteger(value) || value < 1)
      throw new RangeError(
        `database: the URL's parameter ${name} must be a whole number from 1, not "${text}"`,
      )
    return value
  }
  const statement_timeout = take('statement_timeout_ms')
  const max = take('pool_max')
  const lock_timeout = take('lock_timeout_ms')
  const connectionTimeoutMillis = take('connect_timeout_ms')
  return {
    application_name: 'offpeak',
    max,
    statement_timeout,
    query_timeout: statement_timeout + take('answer_extra_ms'),
    lock_timeout,
    idle_in_transaction_session_timeout: IDLE_IN_TRANSACTION_MS,
    connectionTimeoutMillis,
    keepAlive: true,
    keepAliveInitialDelayMillis: KEEP_ALIVE_MS,
    connectionString: address.href,
  }
}

// Classifies errors of PostgreSQL: whether to retry, and the message for the operator. Codes:
// https://www.postgresql.org/docs/current/errcodes-appendix.html

/** Codes of conflicts with another transaction; a retry may succeed. */
const CONFLICTS = new Set([
  '40001', // serialization_failure
  '40P01', // deadlock_detected
  '55P03', // lock_not_available: lock_timeout
])

/** The code read_only_sql_transaction of a standby, or of a primary that became one. */
const READ_ONLY = '25006'

const TOO_MANY_CONNECTIONS = '53300'

/** Codes of a server that is stopping, stopped or starting, or accepts no further connection, or no changes. */
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
/** The code query_canceled, of a statement_timeout. */
const CANCELLED = '57014'

/** Messages of the driver's errors that have no code. */
const BROKEN =
  /^(Connection terminated|Client has encountered a connection error|timeout exceeded when trying)/

/** The message of PgBouncer, which passes few parameters on. */
const UNSUPPORTED_PARAMETER = /^unsupported startup parameter/

/**
 * Classes of errors in the data of a statement: cardinality violation, data exception, integrity constraint violation,
 * program limit exceeded, an exception of a trigger.
 */
const DATA_ERROR_CLASSES = new Set(['21', '22', '23', '54', 'P0'])

/** The port's error for rejected statements; other errors unchanged. */
export function asRejected(error: unknown): unknown {
  return DATA_ERROR_CLASSES.has(codeOf(error).slice(0, 2)) ? new StatementRejected(error) : error
}

export function isConflict(error: unknown): boolean {
  return CONFLICTS.has(codeOf(error))
}

/** Whether the driver waited until `query_timeout`; the server may still execute the statement. */
function isUnanswered(error: unknown): error is Error {
  return error instanceof Error && error.message === 'Query read timeout'
}

/** Whether the server is read-only on this connection; another connection may lead to a primary. */
function isReadOnly(error: unknown): error is Error {
  return error instanceof Error && codeOf(error) === READ_ONLY
}

/** Whether the connection is broken or could not be opened; its transaction has ended. */
export function isUnavailable(error: unknown): boolean {
  const code = codeOf(error)
  if (error instanceof Error && UNSUPPORTED_PARAMETER.test(error.message)) return false
  // Class 08 is connection exceptions.
  if (UNAVAILABLE.has(code) || code.startsWith('08')) return true
  return isUnanswered(error) || (error instanceof Error && BROKEN.test(error.message))
}

/** The port's error if the server cannot be reached, does not answer or is read-only; other errors unchanged. */
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
  const tls = TLS_ADVICE.find(([pattern]) => pattern.test(`${codeOf(error)} ${error.message}`))
  if (tls) return unreachable(error, tls[1])
  return isUnavailable(error)
    ? unreachable(error, 'Start it, or fix `database` in the configuration.')
    : error
}

function unreachable(error: Error, advice: string): DatabaseFailure {
  return new DatabaseFailure(`cannot be reached (${error.message || codeOf(error)})`, advice, error)
}

/** The port's error for a failure to open a connection. */
function connectFailure(error: unknown): unknown {
  const failure = startupFailure(error)
  return failure === error && error instanceof Error
    ? unreachable(error, 'Fix `database` in the configuration.')
    : failure
}

/** Advice by the code and message of errors of Node's TLS and of the driver. */
const TLS_ADVICE: readonly (readonly [RegExp, string])[] = [
  [
    /SELF_SIGNED|UNABLE_TO_(?:GET_ISSUER|VERIFY)|CERT_UNTRUSTED/,
    'Name the certificate of its authority with `sslrootcert=FILE` in the URL of `database`, or in NODE_EXTRA_CA_CERTS.',
  ],
  [/CERT_HAS_EXPIRED|CERT_NOT_YET_VALID/, 'Renew its certificate, and compare the clocks of both machines.'],
  [
    /ERR_TLS_CERT_ALTNAME_INVALID/,
    'Use the name that its certificate has as the host in the URL of `database`, or `sslmode=verify-ca`.',
  ],
  [/does not support SSL/, 'Turn TLS on there, or set `sslmode=disable` in the URL of `database`.'],
  [/pg_hba\.conf entry .* no encryption/, 'It wants TLS: set `sslmode=require` in the URL of `database`.'],
]

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
      'Fix `database` in the configuration, or create the role and the database that it names. In its URL a password has # @ % / and ? as %23 %40 %25 %2F and %3F.',
      error,
    )
  return error
}

function codeOf(error: unknown): string {
  const code = typeof error === 'object' && error !== null && 'code' in error ? error.code : ''
  return typeof code === 'string' ? code : ''
}
