// Backs up a running service: a copy of its SQLite database, and the blobs that belong to it. PostgreSQL has
// tools of its own for this.

import { existsSync } from 'node:fs'
import { mkdir } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { diskBlobs } from '../blobs/disk/disk-blobs.ts'
import { Failure } from '../cli/failure.ts'
import type { Config } from '../config/config.ts'
import { backupSqlite } from '../store/sqlite/backup.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import { type BackedUp, backupBlobs } from '../upkeep/backup-blobs.ts'
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
  if (folder === resolve(config.data_dir)) throw new Failure('a backup has to go to another folder')
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const path = join(folder, 'offpeak.db')
  const { blobs } = await openBlobs(config.blobs)
  const live = sqliteStore({ path: database.path })
  try {
    return await backupBlobs({
      from: blobs,
      to: diskBlobs({ root: join(folder, 'blobs') }),
      live,
      async copyDatabase() {
        await backupSqlite(database.path, path)
        return sqliteStore({ path })
      },
    })
  } finally {
    await live.close()
  }
}
