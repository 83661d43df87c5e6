// SQLite: one connection that writes, in BEGIN IMMEDIATE transactions, and one that reads beside it. Several processes
// and threads may share the file; SQLite's own lock serialises their writes.
import { statSync, utimesSync } from 'node:fs'
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
  DURABLE,
  forKysely,
  makeOwnFile,
  openDatabase,
  READING,
  SQLITE_BUSY,
  UNHURRIED,
} from './database.ts'

const BUSY_MS_MAX = 10_000
/** How often a process that waits asks for the lock. */
const ASK_MS = 1
/** How long the lock is left to a process that waits for it, which may have crashed or be busy with something else. */
const GIVE_WAY_MS = 50

interface SqliteOptions {
  /** The path of the database file, which is created with its folder if it does not exist. */
  path: string
  /** The clock for leases, which tests move. */
  leaseNow?: () => number
}

export function sqliteStore({ path, leaseNow = Date.now }: SqliteOptions): Store {
  makeFolder(dirname(path))
  makeOwnFile(path)
  const writer = connect(path, leaseNow, DURABLE)
  const reader = connect(path, leaseNow, READING)
  // Kysely opens a connection at its first use, and most processes never write asynchronously.
  const asyncWriter = connect(path, leaseNow, UNHURRIED)
  // One transaction of this process runs at a time, in order: only other processes have to be waited for.
  const turns = new Slots(1)
  const writes = new Writes(asRejected)
  return {
    read: reader,
    write: (change) => writes.watch(turns.run(() => writer.transaction().execute(change))),
    writeAsyncCommit: (change) => writes.watch(turns.run(() => asyncWriter.transaction().execute(change))),
    get failing() {
      return writes.failing
    },
    check: () => checkDatabase(reader),
    // Its connection waits for the lock outside of transactions, too.
    migrate: () => migrate(reader),
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
    const pages = await sql<{ integrity_check: string }>`PRAGMA integrity_check`.execute(db)
    const keys = await sql<{ table: string; parent: string }>`PRAGMA foreign_key_check`.execute(db)
    return [
      ...pages.rows.map((row) => row.integrity_check).filter((text) => text !== 'ok'),
      ...keys.rows.map(
        ({ table, parent }) => `a row of ${table} refers to a row of ${parent} that is not there`,
      ),
    ]
  } catch (error) {
    // Some damage aborts the check.
    if (error instanceof DatabaseFailure) return [error.problem]
    throw error
  }
}

/**
 * SQLite's write lock, in turn. SQLite gives it to the process that asks first, and its own wait asks ever more seldom: a
 * process with many transactions would keep others from theirs, and a worker from its lease. So a process that waits asks
 * often, while its event loop continues, and sets the time of a file beside the database; others ask after that process.
 */
class WriteLock {
  readonly #file: string

  constructor(path: string) {
    this.#file = `${path}-waiting`
  }

  /** Runs `begin` until it gets the lock. */
  async take(begin: () => Promise<unknown>): Promise<void> {
    const since = systemClock.steady()
    for (let isWaiting = false; ; await sleep(systemClock, ASK_MS)) {
      const waitedMs = systemClock.steady() - since
      if (!isWaiting && waitedMs < GIVE_WAY_MS && this.#isAwaited()) continue
      try {
        await begin()
        if (isWaiting) this.#setAwaited(0)
        return
      } catch (error) {
        if (codeOf(error) !== SQLITE_BUSY || waitedMs >= BUSY_MS_MAX) throw error
        isWaiting = true
        this.#setAwaited(systemClock.now())
      }
    }
  }

  #isAwaited(): boolean {
    const at = statSync(this.#file, { throwIfNoEntry: false })?.mtimeMs ?? 0
    return Math.abs(systemClock.now() - at) < GIVE_WAY_MS
  }

  #setAwaited(at: number): void {
    makeOwnFile(this.#file)
    try {
      utimesSync(this.#file, at / 1000, at / 1000)
    } catch {
      // Only its owner may. Without it, the lock goes to the process that asks first.
    }
  }
}

function connect(path: string, leaseNow: () => number, commits: CommitSettings): Kysely<Schema> {
  const config = { database: async () => forKysely(openDatabase(path, leaseNow, commits)) }
  return new Kysely<Schema>({ dialect: new ImmediateDialect(config, new WriteLock(path)) })
}

class ImmediateDialect extends SqliteDialect {
  readonly #config: SqliteDialectConfig
  readonly #lock: WriteLock
  constructor(config: SqliteDialectConfig, lock: WriteLock) {
    super(config)
    this.#config = config
    this.#lock = lock
  }
  override createDriver(): Driver {
    return new ImmediateDriver(this.#config, this.#lock)
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
  readonly #lock: WriteLock
  constructor(config: SqliteDialectConfig, lock: WriteLock) {
    super(config)
    this.#lock = lock
  }

  override async beginTransaction(connection: DatabaseConnection): Promise<void> {
    await this.#lock.take(() => connection.executeQuery(CompiledQuery.raw('begin immediate')))
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
