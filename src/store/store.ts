// The SQL port. An adapter opens connections and says how its database locks and tells the time; every
// query lives in this folder, one file per family of tables, and reads the same for all databases.
import type { Kysely, Transaction } from 'kysely'
import type { SealedBlobs } from '../blobs/sealed.ts'
import type { Clock } from '../domain/clock.ts'
import { ExplainedError } from '../domain/errors.ts'
import type { Log } from '../domain/log.ts'
import type { Schema } from './schema.ts'

/** For functions that only read; a Writer is a Reader too. */
export type Reader = Pick<
  Kysely<Schema>,
  'selectFrom' | 'selectNoFrom' | 'with' | 'withRecursive' | 'fn' | 'getExecutor'
>

/** An open transaction: the only way to change anything. */
export type Writer = Transaction<Schema>

/** To dispose of it is to close it. */
export interface Store extends AsyncDisposable {
  /** Committed state, without waiting for writers. */
  readonly read: Reader
  /**
   * Runs `change` in one transaction: all of it is durable when the promise resolves, none of it if it
   * rejects. `change` may run again after a conflict, so it does nothing but SQL. Throws StatementRejected when the
   * same statement can never succeed.
   *
   * Transactions may run concurrently; each statement sees what was committed before it began. A transaction locks
   * the rows that it reads and relies on (`forUpdate()`, `forShare()`, …).
   */
  write<T>(change: (tx: Writer) => Promise<T>): Promise<T>
  /**
   * Like `write`, with an asynchronous commit: the commit does not wait for the disk. The data survives a crash of the
   * process; a power failure may lose the last moments.
   */
  writeAsyncCommit<T>(change: (tx: Writer) => Promise<T>): Promise<T>
  /** Why the last transaction of this process failed, if its database or the storage of that was the cause. */
  readonly failing: DatabaseFailure | null
  /** Problems of the database as a whole, in sentences; reads every page where that is possible. */
  check(): Promise<string[]>
  /** Creates or upgrades the tables; rejects a schema newer than this program. */
  migrate(): Promise<void>
  close(): Promise<void>
}

/** The ports that the parts of a process share. Each part declares which of them it takes. */
export interface Ports {
  store: Store
  sealed: SealedBlobs
  clock: Clock
  log: Log
}

/** The database was written by a newer Offpeak, by a development version, or by another program. */
export class SchemaMismatch extends ExplainedError {
  constructor(problem: string, advice: string) {
    super(`${problem} ${advice}`)
    this.name = 'SchemaMismatch'
  }
}

/** The database or its storage has failed: the message says what is wrong, and `advice` what to do. */
export class DatabaseFailure extends ExplainedError {
  /** Without its subject, the database. */
  readonly problem: string
  readonly advice: string

  constructor(problem: string, advice: string, cause: unknown) {
    super(`the database ${problem}. ${advice}`, { cause })
    this.name = 'DatabaseFailure'
    this.problem = problem
    this.advice = advice
  }
}

/** Nothing more can be written: what was to be committed is not. */
export class DatabaseFull extends DatabaseFailure {}

/** It has to be restored; to call again does not help. */
export class DatabaseDamaged extends DatabaseFailure {}

/** The database rejects a statement because of its data: the same statement can never succeed. */
export class StatementRejected extends Error {
  constructor(cause: unknown) {
    super(`the database refuses a statement: ${cause instanceof Error ? cause.message : cause}`, { cause })
    this.name = 'StatementRejected'
  }
}

/** For adapters: how the transactions of a store end. */
export class Writes {
  /** The failure of the database, for the port. */
  failing: DatabaseFailure | null = null
  readonly #named: (error: unknown) => unknown

  /** `named`: an error as the port names it. */
  constructor(named: (error: unknown) => unknown) {
    this.#named = named
  }

  async watch<T>(write: Promise<T>): Promise<T> {
    try {
      const value = await write
      this.failing = null
      return value
    } catch (cause) {
      const error = this.#named(cause)
      this.failing = error instanceof DatabaseFailure ? error : null
      throw error
    }
  }
}

/** Repeats a change of `most` rows until it has changed fewer; returns how many in all. Other writers run in between. */
export async function untilFewer(most: number, change: () => Promise<number>): Promise<number> {
  for (let all = 0; ; ) {
    const changed = await change()
    all += changed
    if (changed < most) return all
  }
}
