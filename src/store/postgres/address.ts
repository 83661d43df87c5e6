// What the URL of a database says: where it is, how to reach it, and how many connections to keep. Everything
// that the driver knows may stand in it (host, user, password, sslmode, sslrootcert, application_name,
// options, …); a few parameters are our own.
import type { PoolConfig } from 'pg'

/** Per process. A transaction holds one for a few round trips, so few go a long way. */
const POOL_MAX = 10
const STATEMENT_TIMEOUT_MS = 30_000
/** An answer that does not even come as a timeout means that the network is broken. */
const ANSWER_EXTRA_MS = 5_000
const LOCK_TIMEOUT_MS = 10_000
const IDLE_IN_TRANSACTION_MS = 15_000
const CONNECT_TIMEOUT_MS = 5_000
const KEEP_ALIVE_MS = 10_000

/** A whole number of at least 1 each. */
const OURS = {
  pool_max: POOL_MAX,
  statement_timeout_ms: STATEMENT_TIMEOUT_MS,
  lock_timeout_ms: LOCK_TIMEOUT_MS,
  connect_timeout_ms: CONNECT_TIMEOUT_MS,
  answer_extra_ms: ANSWER_EXTRA_MS,
} as const

type OurParameter = keyof typeof OURS

/** Throws a RangeError that names the parameter; no password is ever part of its text. */
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
