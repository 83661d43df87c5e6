// A copy of a SQLite database as it stood at one moment, taken while others write to it.

import { rename, rm } from 'node:fs/promises'
import { backup, DatabaseSync } from 'node:sqlite'
import { makeOwnFile } from './own-file.ts'

/** All pages in one go: pages copied in steps would begin again whenever somebody else has written. */
const ALL_PAGES = 2 ** 31 - 1

/** The file at `to` is replaced whole. */
export async function backupSqlite(from: string, to: string): Promise<void> {
  const part = `${to}.part`
  await rm(part, { force: true })
  makeOwnFile(part)
  const db = new DatabaseSync(from, { readOnly: true, timeout: 10_000 })
  try {
    await backup(db, part, { rate: ALL_PAGES })
  } finally {
    db.close()
  }
  // What belonged to the file that is replaced must not be taken for this one's.
  for (const rest of ['-wal', '-shm']) await rm(`${to}${rest}`, { force: true })
  await rename(part, to)
}
