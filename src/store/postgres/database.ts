// Connections to PostgreSQL that survive its restarts. A broken connection leaves the pool; a caller that asks for
// one while the server is unavailable waits for a limited time.
import type { PostgresPool, PostgresPoolClient, PostgresQueryResult } from 'kysely'
import { Pool, type PoolConfig } from 'pg'
import { storableText } from '../../domain/storable-text.ts'
import { isUnanswered, isUnavailable, outageFailure } from './database-failure.ts'
import { numberTypes } from './number-types.ts'
import { type Remedy, type RetryPlan, withRetries } from './retries.ts'

export function openPool(config: PoolConfig): Pool {
  const pool = new Pool({ ...config, types: numberTypes })
  // An idle connection that breaks must not end the process; the pool opens a new one.
  pool.on('error', () => {})
  pool.on('connect', (client) => client.on('error', () => {}))
  return pool
}

/** Patient until a connection stands, and not after that. */
export function connectingPool(pool: Pool, patience: RetryPlan): PostgresPool {
  return {
    options: pool.options,
    connect: () => withRetries(patience, () => pool.connect(), untilAvailable),
    end: () => pool.end(),
  }
}

/**
 * For transactions. A connection on which a statement is not answered in time is given up: whatever is sent behind that
 * statement, a ROLLBACK above all, would wait as long again.
 */
export function answeringPool(pool: Pool): PostgresPool {
  const connect = async (): Promise<PostgresPoolClient> => {
    const client = await pool.connect()
    let unanswered: Error | null = null
    function query<R>(text: string, parameters: ReadonlyArray<unknown>): Promise<PostgresQueryResult<R>>
    function query(cursor: never): never
    function query(text: string, parameters?: ReadonlyArray<unknown>): unknown {
      if (unanswered) return Promise.reject(unanswered)
      return client.query(text, bindable(parameters)).catch((error: unknown) => {
        if (isUnanswered(error)) unanswered = error
        throw error
      })
    }
    return { query, release: (discard) => client.release(unanswered ?? discard) }
  }
  return { options: pool.options, connect, end: () => pool.end() }
}

/** For single statements that change nothing, each of which may be asked again on another connection. */
export function readingPool(pool: Pool, patience: RetryPlan): PostgresPool {
  const client: PostgresPoolClient = {
    // The types of Kysely's port overload this with cursors, which nobody here opens.
    query: reading(pool, patience),
    release() {},
  }
  return { options: pool.options, connect: async () => client, end: async () => {} }
}

function reading(pool: Pool, patience: RetryPlan): PostgresPoolClient['query'] {
  function query<R>(text: string, parameters: ReadonlyArray<unknown>): Promise<PostgresQueryResult<R>>
  function query(cursor: never): never
  function query(text: string, parameters?: ReadonlyArray<unknown>): unknown {
    const ask = (): Promise<unknown> => pool.query(text, bindable(parameters))
    return withRetries(patience, ask, untilAvailable).catch((error: unknown) => {
      throw outageFailure(error)
    })
  }
  return query
}

/** Servers and callers may say what no text of the database can hold. */
function bindable(parameters: readonly unknown[] = []): unknown[] {
  return parameters.map((value) => (typeof value === 'string' ? storableText(value) : value))
}

function untilAvailable(error: unknown): Remedy {
  return isUnavailable(error) ? 'outage' : null
}
