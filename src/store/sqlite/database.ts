// Opens a file of node:sqlite behind the shape that Kysely's SQLite driver expects, and keeps its statements prepared, since
// the worker runs the same few hundred times a second; also makes, locks, copies and replaces such files.

import { closeSync, existsSync, fchmodSync, openSync, statfsSync } from 'node:fs'
import { open, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { backup, DatabaseSync, type SQLInputValue, type StatementSync } from 'node:sqlite'
import type { SqliteDatabase, SqliteStatement } from 'kysely'
import { syncFolder } from '../../blobs/folders.ts'
import { BoundedMap } from '../../domain/bounded-map.ts'
import { storableText } from '../../domain/text.ts'
import { DatabaseDamaged, DatabaseFailure, DatabaseFull, StatementRejected } from '../store.ts'

/** Below it, SQLite had a bug that could corrupt a database in WAL mode. */
const SQLITE_VERSION_MIN = [3, 51, 3] as const
const BUSY_TIMEOUT_MS = 10_000
const STATEMENTS_KEPT_MAX = 500

/** How a connection commits. */
export interface CommitSettings {
  synchronous: 'FULL' | 'NORMAL'
  /** How long the thread stands still for the lock of another writer. */
  busy_timeout_ms: number
  /** How long the write-ahead log may become before this connection copies it into the database, in pages. */
  checkpoint_pages: number
}

/** A commit is on the disk when it returns. */
const DURABLE: CommitSettings = {
  synchronous: 'FULL',
  busy_timeout_ms: BUSY_TIMEOUT_MS,
  checkpoint_pages: 1_000,
}

/** A commit waits for nothing: not for the disk, not for a lock, and rarely for a checkpoint. */
export const UNHURRIED: CommitSettings = {
  synchronous: 'NORMAL',
  busy_timeout_ms: 0,
  checkpoint_pages: 4_000,
}

/** Throws DatabaseFailure where the file, or what it lies on, is at fault. */
export function openDatabase(
  path: string,
  leaseNow: () => number,
  settings: CommitSettings = DURABLE,
): DatabaseSync {
  return withFailureMessage(path, () => connect(path, leaseNow, settings))
}

function connect(
  path: string,
  leaseNow: () => number,
  { synchronous, busy_timeout_ms, checkpoint_pages }: CommitSettings,
): DatabaseSync {
  // Opening asks for locks, too, and waits for them; how commits wait is set afterwards.
  const db = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS, enableForeignKeyConstraints: true })
  assertVersion(db)
  db.exec(`
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = ${synchronous};
    PRAGMA wal_autocheckpoint = ${checkpoint_pages};
    PRAGMA busy_timeout = ${busy_timeout_ms};
    PRAGMA cache_size = -16000;
    PRAGMA temp_store = MEMORY;
    PRAGMA secure_delete = FAST;
  `)
  db.function('offpeak_now', leaseNow)
  // SQLite's own `lower` knows the letters of ASCII alone.
  db.function('offpeak_lower', { deterministic: true }, (text) =>
    text === null ? null : String(text).toLowerCase(),
  )
  return db
}

/** The database that Kysely's driver runs on. It throws DatabaseFailure where the file is at fault. */
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

// A database is for the user that runs the service. SQLite makes its file as open as the umask lets it, and gives the
// write-ahead log and the shared memory beside it the mode of the file; so the file is made first.

/** An empty file at `path` with mode 0600, unless there is a file; where none can be made, SQLite says why. */
export function makeOwnFile(path: string): void {
  let fd: number
  try {
    fd = openSync(path, 'wx', 0o600)
  } catch {
    return
  }
  // An unusual umask may have taken the owner's own rights.
  fchmodSync(fd, 0o600)
  closeSync(fd)
}

// A lock that at most one process of a machine has: SQLite's own lock on an empty database, which the system releases
// when the process ends in any way.

/** Result code of SQLite: another process has the lock. */
const SQLITE_BUSY = 5

/** Null where another process has it. */
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

// Turns errors of SQLite that its file or disk causes into messages that name the file and what to do.
// Result codes: https://www.sqlite.org/rescode.html

const DAMAGED = {
  what: 'is damaged',
  advice: 'Stop the service and restore the database from a backup; "offpeak doctor" says what is damaged.',
}
const IO_ERROR = 10
const FULL = { what: 'cannot grow: its disk is full', advice: 'Free space there.' }
/** With less, SQLite cannot make the files beside the database, and says no more than that it failed. */
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
    const code = codeOf(error)
    const failure = code === IO_ERROR && isDiskFull(path) ? FULL : FAILURES.get(code)
    if (!failure || !(error instanceof Error)) throw error
    const Failure = failure === DAMAGED ? DatabaseDamaged : failure === FULL ? DatabaseFull : DatabaseFailure
    throw new Failure(`${path} ${failure.what} (${error.message})`, failure.advice, error)
  }
}

function isDiskFull(path: string): boolean {
  try {
    const { bavail, bsize } = statfsSync(dirname(path))
    return bavail * bsize < FREE_BYTES_MIN
  } catch {
    return false
  }
}

/** Result codes of errors that lie in the data of a statement: TOOBIG, CONSTRAINT, MISMATCH, RANGE. */
const DATA_ERRORS = new Set([18, 19, 20, 25])

/** The error as the port names it. A value that cannot be bound is no value of SQLite. */
export function asRejected(error: unknown): unknown {
  const isData = DATA_ERRORS.has(codeOf(error)) || error instanceof UnbindableValue
  return isData ? new StatementRejected(error) : error
}

class UnbindableValue extends TypeError {}

/** The primary result code: extended ones keep theirs in higher bits. */
export function codeOf(error: unknown): number {
  return error instanceof Error && 'errcode' in error ? Number(error.errcode) & 0xff : 0
}

// Copies a SQLite database at one point in time while others write to it, and replaces an earlier copy in one step, so
// that one complete copy exists at every moment.

/** All pages in one go: a copy in steps would begin again at each write. */
const ALL_PAGES = 2 ** 31 - 1

/** Copies the database at `from` to `to`, in the place of what an interrupted copy has left there. */
export async function copySqlite(from: string, to: string): Promise<void> {
  await removeSqlite(to)
  using db = new DatabaseSync(from, { readOnly: true, timeout: BUSY_TIMEOUT_MS })
  makeOwnFile(to)
  await backup(db, to, { rate: ALL_PAGES })
}

/** Moves the database at `next`, which is not open, to `path`; false where a process uses the one that is there. */
export async function replaceSqlite(next: string, path: string): Promise<boolean> {
  if (!settle(path)) return false
  // Files beside the replaced one must not be taken for the new one's.
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

/** Brings what is only in the write-ahead log into the file, so that the file alone is the database. */
function settle(path: string): boolean {
  if (!existsSync(`${path}-wal`)) return true
  try {
    withFailureMessage(path, () => {
      using db = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS })
      db.exec('PRAGMA wal_checkpoint(TRUNCATE)')
    })
  } catch (error) {
    // Nothing can be lost that could still be read.
    if (error instanceof DatabaseDamaged) return true
    throw error
  }
  // The last one to close a database removes its log.
  return !existsSync(`${path}-wal`)
}
