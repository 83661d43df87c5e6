// SQLite: one connection that writes, in BEGIN IMMEDIATE transactions, and one that reads beside it. Several processes
// and threads may share the file; SQLite's own lock serialises their writes.
import { dirname } from 'node:path'
import {
  CompiledQuery,
  type DatabaseConnection,
  type DialectAdapter,
  type Driver,
  Kysely,
  type QueryCompiler,
  type SelectModifierNode,
  SqliteAdapter,
  SqliteDialect,
  type SqliteDialectConfig,
  SqliteDriver,
  SqliteQueryCompiler,
  sql,
} from 'kysely'
import { makeFolder } from '../../blobs/folders.ts'
import { sleep, systemClock } from '../../domain/clock.ts'
import { Slots } from '../../domain/project-queue.ts'
import { migrate } from '../migrate.ts'
import type { Schema } from '../schema.ts'
import { DatabaseFailure, type Store, Writes } from '../store.ts'
import {
  asRejected,
  type CommitSettings,
  codeOf,
  forKysely,
  makeOwnFile,
  openDatabase,
  UNHURRIED,
} from './database.ts'

/** SQLite's result code when another connection has the lock. */
const SQLITE_BUSY = 5
const ASYNC_RETRY_MS = 10_000
const ASYNC_WAIT_MS_MAX = 8

interface SqliteOptions {
  /** The path of the database file, which is created with its folder if it does not exist. */
  path: string
  /** The clock for leases, which tests move. */
  leaseNow?: () => number
}

export function sqliteStore({ path, leaseNow = Date.now }: SqliteOptions): Store {
  makeFolder(dirname(path))
  makeOwnFile(path)
  const writer = connect(path, leaseNow)
  const reader = connect(path, leaseNow)
  // Kysely opens a connection at its first use, and most processes never write asynchronously.
  const asyncWriter = connect(path, leaseNow, UNHURRIED)
  // One transaction of this thread runs at a time: a connection that waits for SQLite's lock blocks the thread, so
  // another connection of the thread that has the lock could never release it.
  const turns = new Slots(1)
  const writes = new Writes(asRejected)
  return {
    read: reader,
    write: (change) => writes.watch(turns.run(() => writer.transaction().execute(change))),
    writeAsyncCommit: (change) =>
      writes.watch(whenFree(() => turns.run(() => asyncWriter.transaction().execute(change)))),
    get failing() {
      return writes.failing
    },
    check: () => checkDatabase(reader),
    migrate: () => migrate(writer),
    async close() {
      await asyncWriter.destroy()
      await reader.destroy()
      await writer.destroy()
    },
    async [Symbol.asyncDispose]() {
      await this.close()
    },
  }
}

async function checkDatabase(db: Kysely<Schema>): Promise<string[]> {
  try {
    return await problemsOf(db)
  } catch (error) {
    // Some damage aborts the check.
    if (error instanceof DatabaseFailure) return [error.problem]
    throw error
  }
}

async function problemsOf(db: Kysely<Schema>): Promise<string[]> {
  const pages = await sql<{ integrity_check: string }>`PRAGMA integrity_check`.execute(db)
  const problems = pages.rows.map((row) => row.integrity_check).filter((text) => text !== 'ok')
  const keys = await sql<{ table: string; parent: string }>`PRAGMA foreign_key_check`.execute(db)
  for (const { table, parent } of keys.rows)
    problems.push(`a row of ${table} refers to a row of ${parent} that is not there`)
  return problems
}

/** Retries while the lock is taken instead of blocking the thread, so that the event loop continues. */
async function whenFree<T>(attempt: () => Promise<T>): Promise<T> {
  const until = systemClock.now() + ASYNC_RETRY_MS
  for (let wait_ms = 1; ; wait_ms = Math.min(wait_ms * 2, ASYNC_WAIT_MS_MAX)) {
    try {
      return await attempt()
    } catch (error) {
      if (!isBusy(error) || systemClock.now() >= until) throw error
      await sleep(systemClock, wait_ms)
    }
  }
}

function isBusy(error: unknown): boolean {
  return codeOf(error) === SQLITE_BUSY
}

function connect(path: string, leaseNow: () => number, commits?: CommitSettings): Kysely<Schema> {
  const dialect = new ImmediateDialect({
    database: async () => forKysely(openDatabase(path, leaseNow, commits)),
  })
  return new Kysely<Schema>({ dialect })
}

class ImmediateDialect extends SqliteDialect {
  readonly #config: SqliteDialectConfig
  constructor(config: SqliteDialectConfig) {
    super(config)
    this.#config = config
  }
  override createDriver(): Driver {
    return new ImmediateDriver(this.#config)
  }

  override createAdapter(): DialectAdapter {
    return new TransactionalAdapter()
  }

  override createQueryCompiler(): QueryCompiler {
    return new LocklessCompiler()
  }
}

/** Runs migrations in one transaction, so that processes that start at once migrate one after the other. */
class TransactionalAdapter extends SqliteAdapter {
  override get supportsTransactionalDdl(): boolean {
    return true
  }
}

/** Omits row locks (`FOR UPDATE`, …), since a writer has locked the whole database. */
class LocklessCompiler extends SqliteQueryCompiler {
  protected override visitSelectModifier(node: SelectModifierNode): void {
    if (node.modifier === 'Distinct') super.visitSelectModifier(node)
  }
}

/** Takes the write lock at BEGIN, so that a transaction that reads first cannot fail to upgrade its lock. */
class ImmediateDriver extends SqliteDriver {
  override async beginTransaction(connection: DatabaseConnection): Promise<void> {
    await connection.executeQuery(CompiledQuery.raw('begin immediate'))
  }

  /** Rolls back without errors: SQLite itself rolls back on a full disk, and the first error is to be reported. */
  override async rollbackTransaction(connection: DatabaseConnection): Promise<void> {
    try {
      await super.rollbackTransaction(connection)
    } catch (error) {
      if (!(error instanceof Error && /no transaction is active/.test(error.message))) throw error
    }
  }
}
