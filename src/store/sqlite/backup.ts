// Copies a SQLite database at one point in time while others write to it, and replaces an earlier copy in one step, so
// that one complete copy exists at every moment.

import { existsSync } from 'node:fs'
import { open, rename, rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { backup, DatabaseSync } from 'node:sqlite'
import { syncFolder } from '../../blobs/folders.ts'
import { codeOf, makeOwnFile, withFailureMessage } from './database.ts'

/** All pages in one go: a copy in steps would begin again at each write. */
const ALL_PAGES = 2 ** 31 - 1
const BUSY_TIMEOUT_MS = 10_000
/** Result codes of SQLite: the file is damaged, or no database. */
const DAMAGED: readonly number[] = [11, 26]

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
  // What belonged to the file that is replaced must not be taken for this one's.
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
    const cause = error instanceof Error ? error.cause : undefined
    // Nothing can be lost that could still be read.
    if (DAMAGED.includes(codeOf(cause ?? error))) return true
    throw error
  }
  // The last one to close a database removes its log.
  return !existsSync(`${path}-wal`)
}
