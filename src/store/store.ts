// The SQL port. An adapter opens connections and defines how its database locks and tells the time; every query is in
// this folder, one file per family of tables, and is the same for all databases.
import type { Kysely, Transaction } from 'kysely'
import type { SealedBlobs } from '../blobs/sealed.ts'
import type { Clock } from '../domain/clock.ts'
import { ExplainedError, messageOf } from '../domain/errors.ts'
import type { Log } from '../domain/log.ts'
import type { Schema } from './schema.ts'

/** The parameter of functions that only read; a Writer is a Reader too. */
export type Reader = Pick<
  Kysely<Schema>,
  'selectFrom' | 'selectNoFrom' | 'with' | 'withRecursive' | 'fn' | 'getExecutor'
>

/** An open transaction, through which all changes are made. */
export type Writer = Transaction<Schema>

/** A database; disposing of it closes its connections. */
export interface Store extends AsyncDisposable {
  /** Reads committed state, without waiting for writers. */
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
  /** The failure of this process's last transaction, if its database or storage was the cause; else null. */
  readonly failing: DatabaseFailure | null
  /** Problems of the database as a whole, in sentences; reads every page where possible. */
  check(): Promise<string[]>
  /** Creates or upgrades the tables; rejects a schema newer than this program. */
  migrate(): Promise<void>
  close(): Promise<void>
}

/** The ports that the parts of a process share. Each part declares the ports that it takes. */
export interface Ports {
  store: Store
  sealed: SealedBlobs
  clock: Clock
  log: Log
}

/** Thrown for a database of a newer Offpeak, of a development version, or of another program. */
export class SchemaMismatch extends ExplainedError {
  constructor(problem: string, advice: string) {
    super(`${problem} ${advice}`)
    this.name = 'SchemaMismatch'
  }
}

/** Thrown when the database or its storage has failed: the message names the problem, and `advice` the fix. */
export class DatabaseFailure extends ExplainedError {
  /** The predicate of the message, whose subject is the database. */
  readonly problem: string
  readonly advice: string

  constructor(problem: string, advice: string, cause: unknown) {
    super(`the database ${problem}. ${advice}`, { cause })
    this.name = 'DatabaseFailure'
    this.problem = problem
    this.advice = advice
  }
}

/** Thrown when the disk is full; the transaction was not committed. */
export class DatabaseFull extends DatabaseFailure {}

/** Thrown when the database is damaged and has to be restored; a retry does not help. */
export class DatabaseDamaged extends DatabaseFailure {}

/** Thrown for a statement that the database rejects because of its data, so that it can never succeed. */
export class StatementRejected extends Error {
  constructor(cause: unknown) {
    super(`the database refuses a statement: ${messageOf(cause)}`, { cause })
    this.name = 'StatementRejected'
  }
}

/** Records the outcome of a store's transactions, for adapters. */
export class Writes {
  /** The failure of the last transaction, if the database caused it. */
  failing: DatabaseFailure | null = null
  readonly #named: (error: unknown) => unknown

  /** Makes the record. `named`: converts an error to the port's error. */
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

/** Repeats a change of up to `most` rows until it changes fewer; returns their total. Other writers run in between. */
export async function untilFewer(most: number, change: () => Promise<number>): Promise<number> {
  for (let all = 0; ; ) {
    const changed = await change()
    all += changed
    if (changed < most) return all
  }
}
