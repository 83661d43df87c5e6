// Opens a file of node:sqlite behind the interface that Kysely's SQLite driver expects, and caches prepared statements,
// since the worker runs the same few hundred times a second; also makes, locks, copies and replaces such files.

import { closeSync, existsSync, fchmodSync, openSync, statfsSync } from 'node:fs'
import { open, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { backup, DatabaseSync, type SQLInputValue, type StatementSync } from 'node:sqlite'
import type { SqliteDatabase, SqliteStatement } from 'kysely'
import { syncFolder } from '../../blobs/folders.ts'
import { BoundedMap } from '../../domain/bounded-map.ts'
import { storableText } from '../../domain/text.ts'
import { DatabaseDamaged, DatabaseFailure, DatabaseFull, StatementRejected } from '../store.ts'

/** The first version of SQLite without a bug that could corrupt a database in WAL mode. */
const SQLITE_VERSION_MIN = [3, 51, 3] as const
const BUSY_TIMEOUT_MS = 10_000
const STATEMENTS_KEPT_MAX = 500

export interface CommitSettings {
  synchronous: 'FULL' | 'NORMAL'
  /** The time for which the thread blocks while another writer has the lock. */
  busy_timeout_ms: number
  /** The pages of write-ahead log after which this connection checkpoints. */
  checkpoint_pages: number
}

/** Settings under which a commit is on the disk when it returns. */
export const DURABLE: CommitSettings = { synchronous: 'FULL', busy_timeout_ms: 0, checkpoint_pages: 1_000 }

/** Settings of a connection that mostly reads. */
export const READING: CommitSettings = { ...DURABLE, busy_timeout_ms: BUSY_TIMEOUT_MS }

/** Settings under which a commit does not wait for the disk, and rarely for a checkpoint. */
export const UNHURRIED: CommitSettings = {
  synchronous: 'NORMAL',
  busy_timeout_ms: 0,
  checkpoint_pages: 4_000,
}

/** Opens a database. Throws DatabaseFailure if the file or its disk is the cause of an error. */
export function openDatabase(path: string, leaseNow: () => number, settings: CommitSettings): DatabaseSync {
  return withFailureMessage(path, () => connect(path, leaseNow, settings))
}

function connect(
  path: string,
  leaseNow: () => number,
  { synchronous, busy_timeout_ms, checkpoint_pages }: CommitSettings,
): DatabaseSync {
  // Opening takes locks and waits for them, before the settings for commits apply.
  const db = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS, enableForeignKeyConstraints: true })
  assertVersion(db)
  db.exec(`
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = ${synchronous};
    PRAGMA wal_autocheckpoint = ${checkpoint_pages};
    PRAGMA cache_size = -16000;
    PRAGMA temp_store = MEMORY;
    PRAGMA secure_delete = FAST;
    PRAGMA busy_timeout = ${busy_timeout_ms};
  `)
  db.function('offpeak_now', leaseNow)
  // SQLite's own `lower` knows only ASCII letters.
  db.function('offpeak_lower', { deterministic: true }, (text) =>
    text === null ? null : String(text).toLowerCase(),
  )
  return db
}

/** The database for Kysely's driver. It throws DatabaseFailure if the file is the cause of an error. */
export function forKysely(db: DatabaseSync): SqliteDatabase {
  const path = db.location() ?? 'in memory'
  const kept = new BoundedMap<string, SqliteStatement>(STATEMENTS_KEPT_MAX)
  return {
    close: () => db.close(),
    prepare(text) {
      const known = kept.get(text)
      if (known) return known
      const statement = withFailureMessage(path, () => adapt(path, db.prepare(text)))
      kept.set(text, statement)
      return statement
    },
  }
}

function adapt(path: string, statement: StatementSync): SqliteStatement {
  return {
    reader: statement.columns().length > 0,
    all: (parameters) => withFailureMessage(path, () => statement.all(...bindable(parameters))),
    run: (parameters) => withFailureMessage(path, () => statement.run(...bindable(parameters))),
    iterate: (parameters) => statement.iterate(...bindable(parameters)),
  }
}

function bindable(parameters: readonly unknown[]): SQLInputValue[] {
  return parameters.map((value) => {
    if (typeof value === 'string') return storableText(value)
    if (value === null || typeof value === 'number' || typeof value === 'bigint') return value
    throw new UnbindableValue(`cannot bind a ${typeof value} to a statement`)
  })
}

function assertVersion(db: DatabaseSync): void {
  const row = db.prepare('SELECT sqlite_version() AS version').get()
  const version = String(row?.version)
  const parts = version.split('.').map(Number)
  for (const [i, min] of SQLITE_VERSION_MIN.entries()) {
    const part = parts[i] ?? 0
    if (part > min) return
    if (part < min)
      throw new Error(
        `SQLite ${SQLITE_VERSION_MIN.join('.')} or newer is needed, and this Node brings ${version}`,
      )
  }
}

// A database file is private to the user of the service. SQLite would give its file the mode of the umask, and gives
// the write-ahead log and the shared memory beside it the mode of the file; so the file is created first.

/** Creates an empty file at `path` with mode 0600 if there is none; if that fails, SQLite reports the error. */
export function makeOwnFile(path: string): void {
  let fd: number
  try {
    fd = openSync(path, 'wx', 0o600)
  } catch {
    return
  }
  // An unusual umask may remove the owner's own rights.
  fchmodSync(fd, 0o600)
  closeSync(fd)
}

// A lock that one process of a machine has: SQLite's own lock on an empty database, which the system releases when the
// process ends in any way.

/** SQLite's result code when another connection has the lock. */
export const SQLITE_BUSY = 5

/** Takes the lock; null if another process has it. */
export function lockFile(path: string): Disposable | null {
  makeOwnFile(path)
  const db = new DatabaseSync(path, { timeout: 0 })
  try {
    db.exec('BEGIN EXCLUSIVE')
  } catch (error) {
    db.close()
    if (codeOf(error) === SQLITE_BUSY) return null
    throw error
  }
  return db
}

// Turns errors of SQLite that its file or disk causes into messages that name the file and the fix. Result codes:
// https://www.sqlite.org/rescode.html

const DAMAGED = {
  what: 'is damaged',
  advice: 'Stop the service and restore the database from a backup; "offpeak doctor" says what is damaged.',
}
const IO_ERROR = 10
const FULL = { what: 'cannot grow: its disk is full', advice: 'Free space there.' }
/** The free bytes below which SQLite cannot create the files beside the database, and reports only a failure. */
const FREE_BYTES_MIN = 128 * 1024
const FAILURES = new Map<number, { what: string; advice: string }>([
  // SQLITE_READONLY
  [8, { what: 'may not be written to', advice: 'Make the file, its folder and the disk writable.' }],
  [IO_ERROR, { what: 'cannot be read or written', advice: 'The disk fails: look into the system log.' }],
  // SQLITE_CORRUPT
  [11, DAMAGED],
  // SQLITE_FULL
  [13, FULL],
  // SQLITE_CANTOPEN
  [14, { what: 'cannot be opened', advice: 'Its folder must exist and be writable for this user.' }],
  // SQLITE_NOTADB
  [26, DAMAGED],
])

/** Runs `work` on the database at `path`. */
function withFailureMessage<T>(path: string, work: () => T): T {
  try {
    return work()
  } catch (error) {
    throw failureOf(path, error)
  }
}

/** The error of the database at `path`, with what to do where that is known. */
function failureOf(path: string, error: unknown): unknown {
  const code = codeOf(error)
  const failure = code === IO_ERROR && isDiskFull(path) ? FULL : FAILURES.get(code)
  if (!failure || !(error instanceof Error)) return error
  const Failure = failure === DAMAGED ? DatabaseDamaged : failure === FULL ? DatabaseFull : DatabaseFailure
  return new Failure(`${path} ${failure.what} (${error.message})`, failure.advice, error)
}

function isDiskFull(path: string): boolean {
  try {
    const { bavail, bsize } = statfsSync(dirname(path))
    return bavail * bsize < FREE_BYTES_MIN
  } catch {
    return false
  }
}

/** Result codes of errors in the data of a statement: TOOBIG, CONSTRAINT, MISMATCH, RANGE. */
const DATA_ERRORS = new Set([18, 19, 20, 25])

/** The port's error for rejected statements and for values that cannot be bound; other errors unchanged. */
export function asRejected(error: unknown): unknown {
  const isData = DATA_ERRORS.has(codeOf(error)) || error instanceof UnbindableValue
  return isData ? new StatementRejected(error) : error
}

class UnbindableValue extends TypeError {}

/** The primary result code: extended codes contain it in their low bits. */
export function codeOf(error: unknown): number {
  return error instanceof Error && 'errcode' in error ? Number(error.errcode) & 0xff : 0
}

// Copies a SQLite database at one point in time while it is written to, and replaces an earlier copy in one step, so
// that one complete copy exists at every moment.

/** A number of pages that copies all at once: a copy in steps would start again at each write. */
const ALL_PAGES = 2 ** 31 - 1

/** Copies the database at `from` to `to`, replacing the rest of an interrupted copy. */
export async function copySqlite(from: string, to: string): Promise<void> {
  await removeSqlite(to)
  using db = new DatabaseSync(from, { readOnly: true, timeout: BUSY_TIMEOUT_MS })
  makeOwnFile(to)
  await backup(db, to, { rate: ALL_PAGES }).catch((error) => {
    throw failureOf(isDiskFull(to) ? to : from, error)
  })
}

/** Moves the closed database at `next` to `path`; false if a process uses the database there. */
export async function replaceSqlite(next: string, path: string): Promise<boolean> {
  if (!settle(path)) return false
  // Files beside the replaced database must not count as the new one's.
  for (const rest of ['-wal', '-shm']) await rm(`${path}${rest}`, { force: true })
  {
    await using file = await open(next, 'r')
    await file.sync()
  }
  await rename(next, path)
  await syncFolder(dirname(path))
  return true
}

export async function removeSqlite(path: string): Promise<void> {
  for (const rest of ['', '-wal', '-shm', '-journal']) await rm(`${path}${rest}`, { force: true })
}

/** Checkpoints the write-ahead log, so that the file alone is the database; false if a process uses it. */
function settle(path: string): boolean {
  if (!existsSync(`${path}-wal`)) return true
  try {
    withFailureMessage(path, () => {
      using db = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS })
      db.exec('PRAGMA wal_checkpoint(TRUNCATE)')
    })
  } catch (error) {
    // A damaged database has nothing more to lose.
    if (error instanceof DatabaseDamaged) return true
    throw error
  }
  // The last connection to close a database removes its log.
  return !existsSync(`${path}-wal`)
}
