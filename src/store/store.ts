// The SQL port. An adapter opens connections and says how its database locks and tells the time; every
// query lives in this folder, one file per family of tables, and reads the same for all databases.
import type { Kysely, RawBuilder, Transaction } from 'kysely'
import type { Schema } from './schema.ts'

/** What a function needs that only reads; a Writer will do as well. */
export type Reader = Pick<
  Kysely<Schema>,
  'selectFrom' | 'selectNoFrom' | 'with' | 'withRecursive' | 'fn' | 'getExecutor'
>

/** An open transaction: the only way to change anything. */
export type Writer = Transaction<Schema>

/** Where databases differ in what a claim needs. */
export interface ClaimSql {
  /** The database's own clock, Unix ms: the only judge of a lease. */
  now: RawBuilder<number>
}

export interface Store {
  /** Committed state, without waiting for writers. */
  readonly read: Reader
  readonly claimSql: ClaimSql
  /**
   * Runs `change` in one transaction: all of it is durable when the promise resolves, none of it if it
   * rejects. `change` may run again after a conflict, so it does nothing but SQL. Throws StatementRefused for what
   * can never succeed.
   *
   * Transactions may run side by side, each statement seeing what was committed before it began. What a
   * transaction has read and builds on is locked as it is read (`forUpdate()`, `forShare()`, …).
   */
  write<T>(change: (tx: Writer) => Promise<T>): Promise<T>
  /**
   * Like `write`, for what is noted along the way: it is committed, and survives the end of the process, but the
   * last moments of it may be lost with the machine's power. It costs no wait for the disk.
   */
  writeAsyncCommit<T>(change: (tx: Writer) => Promise<T>): Promise<T>
  /**
   * Forgets the records of HTTP calls made before `keep_from` (Unix ms), and prepares for those of the months to
   * come. A database that keeps them by the month drops a month once all of it has passed.
   */
  maintainHttpRequests(now: number, keep_from: number): Promise<void>
  /** What is wrong with the database as a whole, in sentences; looks at every page where that is possible. */
  check(): Promise<string[]>
  /** Creates or upgrades the tables; refuses a schema newer than this program. */
  migrate(): Promise<void>
  close(): Promise<void>
}

/** The database was written by a newer Offpeak, by a development version, or by another program. */
export class SchemaMismatch extends Error {
  constructor(problem: string, advice: string) {
    super(`${problem} ${advice}`)
    this.name = 'SchemaMismatch'
  }
}

/** The database, or what it is kept on, is at fault: the message says what is wrong, and `advice` what to do. */
export class DatabaseFailure extends Error {
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

/** The database refuses a statement for the data in it: the same statement can never succeed. */
export class StatementRefused extends Error {
  constructor(cause: unknown) {
    super(`the database refuses a statement: ${cause instanceof Error ? cause.message : cause}`, { cause })
    this.name = 'StatementRefused'
  }
}
