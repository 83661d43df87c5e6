// PostgreSQL: a pool of connections, transactions at READ COMMITTED in which queries lock the rows that they
// build on, one clock for all processes. docs/decisions/ says why no stricter isolation is needed.
import {
  type DataTypeNode,
  Kysely,
  PostgresDialect,
  PostgresQueryCompiler,
  type QueryCompiler,
  sql,
} from 'kysely'
import { type Clock, systemClock } from '../../domain/clock.ts'
import { migrate } from '../migrate.ts'
import type { Schema } from '../schema.ts'
import { DatabaseFailure, type Store, type Writer, Writes } from '../store.ts'
import {
  answeringPool,
  asRejected,
  connectingPool,
  isConflict,
  isUnavailable,
  openPool,
  outageFailure,
  type Remedy,
  readAddress,
  readingPool,
  startupFailure,
  withRetries,
} from './database.ts'

/** The time for which calls are retried while the server restarts; then the caller gets an error. */
const PATIENCE_MS = 10_000
/** The time for which a start waits for the database, which may be starting as well. */
const START_PATIENCE_MS = 60_000
/** The duration from which a migration is logged. */
const MIGRATION_TOLD_MS = 5_000
/** PostgreSQL's largest timeout, 24 days: the driver leaves out a 0, and then the role's own timeouts would apply. */
const NO_TIMEOUT_MS = 2 ** 31 - 1
/** The advisory lock under which one process at a time changes table settings and makes the functions. */
const SETTINGS_LOCK = 7_310_577

interface PostgresOptions {
  /** The URL of the database: `postgres://user:password@host:port/database?…` */
  url: string
  /** The clock of waits between attempts, which tests may move. */
  clock?: Clock
  patience_ms?: number
  /** Called once when `migrate` has to wait: for the server, at most a minute, or for a lock. */
  onWaiting?: (failure: unknown) => void
}

export function postgresStore({
  url,
  clock = systemClock,
  patience_ms = PATIENCE_MS,
  onWaiting,
}: PostgresOptions): Store {
  const address = readAddress(url)
  const pool = openPool(address)
  const patience = { clock, for_ms: patience_ms }
  const writes = new Writes((error) => asRejected(outageFailure(error)))
  const retried = <T>(change: () => Promise<T>): Promise<T> =>
    writes.watch(withRetries(patience, change, remedyOf))
  const writer = new Kysely<Schema>({ dialect: new PostgresDialect({ pool: answeringPool(pool) }) })
  const reader = new Kysely<Schema>({ dialect: new PostgresDialect({ pool: readingPool(pool, patience) }) })
  return {
    read: reader,
    write: (change) => retried(() => transact(writer, change)),
    writeAsyncCommit: (change) =>
      retried(() =>
        transact(writer, async (tx) => {
          await sql`SET LOCAL synchronous_commit = off`.execute(tx)
          return await change(tx)
        }),
      ),
    get failing() {
      return writes.failing
    },
    // The server checks its pages itself on reading (data_checksums).
    check: async () => [],
    async migrate() {
      // Another process may migrate for any length of time, so there are no timeouts.
      const untimed = openPool({
        ...address,
        max: 1,
        statement_timeout: NO_TIMEOUT_MS,
        query_timeout: 0,
        lock_timeout: NO_TIMEOUT_MS,
      })
      const start = { clock, for_ms: Math.max(patience_ms, START_PATIENCE_MS) }
      let isTold = false
      const tell = (failure: unknown): void => {
        if (!isTold) onWaiting?.(failure)
        isTold = true
      }
      const cancel = clock.after(MIGRATION_TOLD_MS, () => tell(migrationWaits()))
      const db = new Kysely<Schema>({
        dialect: new BytewiseDialect({
          pool: connectingPool(untimed, start, (error) => tell(outageFailure(error))),
        }),
      })
      try {
        // Processes that start at once may deadlock, or conflict where the role's isolation is serializable.
        await withRetries(
          start,
          () => upgrade(db),
          (error) => (isConflict(error) ? 'conflict' : null),
        )
      } catch (error) {
        throw startupFailure(error)
      } finally {
        cancel()
        await db.destroy()
      }
    },
    async close() {
      await reader.destroy()
      await writer.destroy()
      if (!pool.ending) await pool.end()
    },
    async [Symbol.asyncDispose]() {
      await this.close()
    },
  }
}

async function upgrade(db: Kysely<Schema>): Promise<void> {
  await migrate(db)
  await db.transaction().execute(async (tx) => {
    await sql`SELECT pg_advisory_xact_lock(${sql.lit(SETTINGS_LOCK)})`.execute(tx)
    await applyTableSettings(tx)
    await makeFunctions(tx)
  })
}

function migrationWaits(): DatabaseFailure {
  const advice =
    'Its tables are being upgraded, or another process has locked them: look in pg_stat_activity.'
  return new DatabaseFailure('is not up to date yet', advice, undefined)
}

/** Runs one transaction. Throws OutcomeUnknown when the connection broke after the commit was requested. */
async function transact<T>(db: Kysely<Schema>, change: (tx: Writer) => Promise<T>): Promise<T> {
  const tx = await db.startTransaction().setIsolationLevel('read committed').execute()
  let value: T
  try {
    value = await change(tx)
  } catch (error) {
    // A broken connection has no transaction to roll back.
    await tx
      .rollback()
      .execute()
      .catch(() => {})
    throw error
  }
  try {
    await tx.commit().execute()
  } catch (error) {
    // The rollback returns or discards the connection later; the caller does not wait for it.
    tx.rollback()
      .execute()
      .catch(() => {})
    throw isUnavailable(error) ? new OutcomeUnknown(error) : error
  }
  return value
}

/** Thrown when a transaction may or may not have been committed; its caller can find out by reading. */
class OutcomeUnknown extends DatabaseFailure {
  constructor(cause: unknown) {
    super('did not answer a commit', 'The transaction may have taken effect.', cause)
    this.name = 'OutcomeUnknown'
  }
}

function remedyOf(error: unknown): Remedy {
  if (error instanceof OutcomeUnknown) return null
  if (isConflict(error)) return 'conflict'
  return isUnavailable(error) ? 'outage' : null
}

// Text is compared byte by byte, as in SQLite and as IDs need: each column of a migration gets the collation "C",
// whatever the default of the database.

/** The dialect of migrations. Elsewhere a column's type may be used where a collation must not be. */
class BytewiseDialect extends PostgresDialect {
  override createQueryCompiler(): QueryCompiler {
    return new BytewiseCompiler()
  }
}

class BytewiseCompiler extends PostgresQueryCompiler {
  protected override visitDataType(node: DataTypeNode): void {
    super.visitDataType(node)
    if (node.dataType === 'text') this.append(' collate "C"')
  }
}

/**
 * Creates the functions that SQLite connections have too. In the collation "C", `lower` knows only ASCII letters, and
 * without ICU those of the database's language.
 */
async function makeFunctions(db: Kysely<Schema>): Promise<void> {
  const { rows } = await sql<{ icu: boolean; now: string | null; lower: string | null }>`
    SELECT pg_encoding_to_char(encoding) = 'UTF8' AND to_regcollation('pg_catalog."und-x-icu"') IS NOT NULL AS icu,
      to_regprocedure('offpeak_now()')::text AS now, to_regprocedure('offpeak_lower(text)')::text AS lower
    FROM pg_database WHERE datname = current_database()`.execute(db)
  for (const { icu, now, lower } of rows) {
    if (now === null)
      // An index search evaluates a stable function once per statement.
      await sql`CREATE FUNCTION offpeak_now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
        AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint'`.execute(db)
    if (lower === null)
      await sql`CREATE FUNCTION offpeak_lower(text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
        AS ${sql.lit(`SELECT lower($1 COLLATE ${icu ? 'pg_catalog."und-x-icu"' : '"default"'})`)}`.execute(db)
  }
}

// Tables with frequent updates get free space on their pages, so that most updates touch no index (HOT), and are
// vacuumed by the number of obsolete rows, not by a share of a table that only ever grows.

const CHURN = {
  autovacuum_vacuum_scale_factor: '0',
  autovacuum_vacuum_threshold: '1000',
  autovacuum_vacuum_cost_delay: '0',
}
const GROWING = { autovacuum_vacuum_insert_scale_factor: '0.05', autovacuum_analyze_scale_factor: '0.02' }

const SETTINGS: Readonly<Partial<Record<keyof Schema, Readonly<Record<string, string>>>>> = {
  // The table has a dozen rows, updated several times a second.
  workers: { fillfactor: '50', ...CHURN },
  tasks: { fillfactor: '70', ...CHURN },
  // Chunks are claimed, committed to and sealed; then they never change.
  chunks: { fillfactor: '80', ...CHURN, autovacuum_vacuum_threshold: '10000', ...GROWING },
  batches: { fillfactor: '70', ...CHURN },
  journal_parts: CHURN,
  blobs: { ...GROWING, autovacuum_vacuum_scale_factor: '0.02' },
}

/** Changes the settings that differ, and no others: a change takes a lock that waits for long queries. */
async function applyTableSettings(db: Kysely<Schema>): Promise<void> {
  const { rows } = await sql<{ name: string; option: string }>`
    SELECT relname AS name, unnest(reloptions) AS option
    FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace`.execute(db)
  const set = new Set(rows.map((row) => `${row.name} ${row.option}`))
  for (const [table, settings] of Object.entries(SETTINGS)) {
    const missing = Object.entries(settings).filter(([key, value]) => !set.has(`${table} ${key}=${value}`))
    if (missing.length === 0) continue
    const list = missing.map(([key, value]) => `${key} = ${value}`).join(', ')
    await sql`ALTER TABLE ${sql.table(table)} SET (${sql.raw(list)})`.execute(db)
  }
}
