// Backs up a running service: a copy of its SQLite database, and the blobs that belong to it. PostgreSQL has
// tools of its own for this.

import { existsSync, realpathSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { type BackedUp, backupBlobs } from '../admin/backup-blobs.ts'
import { diskBlobs } from '../blobs/disk/disk-blobs.ts'
import { Failure } from '../cli/terminal/failure.ts'
import type { Config } from '../config/config.ts'
import { copySqlite, removeSqlite, replaceSqlite } from '../store/sqlite/backup.ts'
import { lockFile } from '../store/sqlite/lock-file.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import { closeFolder } from './owner-only.ts'
import { openBlobs } from './stores.ts'

/** `dir` is then a data folder that lacks nothing but the master key. */
export async function backup(config: Config, dir: string): Promise<BackedUp> {
  const { database } = config
  if (database.kind !== 'sqlite')
    throw new Failure(
      'PostgreSQL is backed up by its own tools (pg_dump, or base backups with WAL archiving) and a bucket by versioning; docs/backup.md tells how',
    )
  if (!existsSync(database.path))
    throw new Failure(`there is no database at ${database.path}; choose one with --data or --config`)
  const folder = resolve(dir)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const path = join(folder, 'offpeak.db')
  if (isSame(folder, config.data_dir) || isSame(path, database.path))
    throw new Failure('a backup has to go to another folder')
  const blobs_root = join(folder, 'blobs')
  closeFolder(folder, ['blobs'])
  closeFolder(blobs_root, ['objects', 'tmp'])
  const lock = lockFile(join(folder, 'backup.lock'))
  if (lock === null) throw new Failure(`another backup to ${folder} is under way; wait until it has ended`)
  const next = `${path}.next`
  try {
    const { blobs } = await openBlobs(config.blobs)
    const live = sqliteStore({ path: database.path })
    try {
      return await backupBlobs({
        from: blobs,
        to: diskBlobs({ root: blobs_root }),
        live,
        async copyDatabase() {
          await copySqlite(database.path, next)
          return sqliteStore({ path: next })
        },
        async publish() {
          if (!(await replaceSqlite(next, path)))
            throw new Failure(
              `a process uses ${path}, so the backup was left as it was; choose another folder`,
            )
          return sqliteStore({ path })
        },
      })
    } finally {
      await live.close()
      await removeSqlite(next)
    }
  } finally {
    lock.release()
  }
}

function isSame(one: string, other: string): boolean {
  return existsSync(one) && existsSync(other) && realpathSync(one) === realpathSync(other)
}
