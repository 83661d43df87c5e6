// A backup copies the database and the blobs that it names. The database is copied first: a blob is written before the
// commit that names it and never changes, so every blob that the copy names existed when the copy was made. Users may
// have deleted content since; then the database is copied again, until every blob that the copy names is there.
//
// The previous backup in the same folder stays complete until the new one is: the new copy of the database has a
// temporary name while its blobs are added, then it replaces the previous copy in one step, and only then are unneeded
// blobs removed. After any failure or crash one of the two can be restored, and the next backup copies only the missing
// blobs.

import { type Blobs, nullIfMissing } from '../blobs/blobs.ts'
import { mapAhead } from '../domain/project-queue.ts'
import { removeUnknown } from '../maintenance/sweep.ts'
import { blobPages, knownBlobs } from '../store/blobs.ts'
import type { Store } from '../store/store.ts'
import { AdminCommandError } from './database-freeze.ts'

const ROWS_AT_ONCE = 500
const BLOBS_AT_ONCE = 16
/** The limit of copies of the database: a service that deletes content faster cannot be backed up while it runs. */
const ROUNDS_MAX = 5

export interface BackedUp {
  /** The number of blobs in the backup, and the number and bytes copied by this run. */
  blobs: number
  copied: number
  bytes_copied: number
  /** The number of removed blobs of an earlier backup, to which nothing refers any more. */
  removed: number
  /** Keys of blobs that the service itself has lost: "offpeak doctor" names their uses. */
  missing: string[]
}

interface BackupDeps {
  /** The blobs of the service, and those of the backup. */
  from: Blobs
  to: Blobs
  /** The database of the service. */
  live: Pick<Store, 'read'>
  /** Copies the database to a temporary name beside the previous backup's database, and opens the copy. */
  copyDatabase: () => Promise<Store>
  /** Replaces the previous backup's database by the last copy, which is closed, and opens it. */
  publish: () => Promise<Store>
}

export async function backupBlobs({ from, to, live, copyDatabase, publish }: BackupDeps): Promise<BackedUp> {
  let copied = 0
  let bytes_copied = 0
  for (let round = 1; round <= ROUNDS_MAX; round++) {
    const { blobs, missing } = await withStore(copyDatabase, async (copy) => {
      const missing: string[] = []
      let blobs = 0
      for await (const rows of blobPages(copy.read, ROWS_AT_ONCE))
        for await (const done of mapAhead(rows, BLOBS_AT_ONCE, ({ key }) => copyNew(from, to, key))) {
          blobs++
          if (done.bytes === null) missing.push(done.key)
          else if (done.bytes > 0) copied++
          bytes_copied += done.bytes ?? 0
        }
      return { blobs, missing }
    })
    const lost = [...(await knownBlobs(live.read, missing, true))]
    // A retry does not help if the service has lost the blobs that it needs.
    if (lost.length < missing.length) continue
    const removed = await withStore(publish, (published) =>
      removeUnknown(to, published.read, to.list(''), { isOpenable: true }),
    )
    return { blobs: blobs - lost.length, copied, bytes_copied, removed, missing: lost }
  }
  throw new AdminCommandError(
    'content was deleted faster than it could be copied; run the backup again, or stop the service for it',
  )
}

async function withStore<T>(open: () => Promise<Store>, work: (store: Store) => Promise<T>): Promise<T> {
  await using store = await open()
  return await work(store)
}

/** Copies a blob and returns its bytes: 0 when an earlier backup copied it, null when the service lacks it. */
async function copyNew(from: Blobs, to: Blobs, key: string): Promise<{ key: string; bytes: number | null }> {
  const there = await to.size(key).catch(nullIfMissing)
  return { key, bytes: there === null ? await to.put(key, from.read(key)).catch(nullIfMissing) : 0 }
}
