// A lock that at most one process of a machine has: SQLite's own lock on an empty database, which the system releases
// when the process ends in any way.
import { DatabaseSync } from 'node:sqlite'
import { codeOf } from './database-failure.ts'
import { makeOwnFile } from './own-file.ts'

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
