// Files beside the database that SQLite makes: for the user that runs the service alone, and a lock of the machine.
import { closeSync, fchmodSync, openSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { codeOf } from './database-failure.ts'

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

/** Result code of SQLite: somebody else has the lock. */
const SQLITE_BUSY = 5

/** Null where another process has it. */
export function lockFile(path: string): { release(): void } | null {
  makeOwnFile(path)
  const db = new DatabaseSync(path, { timeout: 0 })
  try {
    db.exec('BEGIN EXCLUSIVE')
  } catch (error) {
    db.close()
    if (codeOf(error) === SQLITE_BUSY) return null
    throw error
  }
  return { release: () => db.close() }
}
