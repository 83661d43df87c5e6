// Replaces the master key of a database, and switches the key files. Only wrapped keys are rewritten; blobs stay as
// they are. Each wrapped key names its master key and each page is a transaction, so an interrupted rekey is run again
// and continues.
import { createHash, randomInt } from 'node:crypto'
import { link, readFile, rename, unlink } from 'node:fs/promises'
import { dirname } from 'node:path'
import { BlobMissing, type Blobs } from '../blobs/blobs.ts'
import { syncFolder } from '../blobs/folders.ts'
import type { KeyService } from '../blobs/key-service.ts'
import { type KeyPlace, type MasterKey, readMasterKey } from '../blobs/master-key.ts'
import { sealBlobs } from '../blobs/sealed.ts'
import { masterKeyIdOf, rewrap } from '../blobs/wrap-key.ts'
import { secretName } from '../notify/webhook-signature.ts'
import {
  blobPages,
  lockBlobKeys,
  lockSecrets,
  replaceBlobKeys,
  replaceSecrets,
  type WrappedSecrets,
} from '../store/blobs.ts'
import { deleteProperty, writeProperty } from '../store/database-properties.ts'
import { pagesOf } from '../store/page.ts'
import type { BlobRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import {
  AdminCommandError,
  assertNoLiveProcess,
  freeze,
  readFreeze,
  spoken,
  thaw,
} from './database-freeze.ts'

const ROWS_AT_ONCE = 500
/** Blobs that are opened in the end. */
const SAMPLE = 20

export interface Rekeyed {
  /** Keys of blobs and secrets of webhooks that were rewrapped now. */
  rewrapped: number
  /** Blobs and secrets under the new key, this run's and earlier ones'. */
  total: number
  /** Blobs that were read through to the end under the new key. */
  opened: number
}

interface RekeyDeps {
  store: Store
  blobs: Blobs
}

/**
 * Rewraps every key that `from` wraps, and verifies that `to` wraps all of them. The database stays closed to
 * services until `endRekey`. `from` is null where the file of the old key has been replaced already: then it may
 * wrap none. Throws AdminCommandError.
 */
export async function rekey(
  { store, blobs }: RekeyDeps,
  { from, to }: { from: MasterKey | null; to: MasterKey },
  {
    tell = () => {},
    rows_at_once = ROWS_AT_ONCE,
  }: { tell?: (done: number) => void; rows_at_once?: number } = {},
): Promise<Rekeyed> {
  const resumed = await begin(store, from, to)
  const known = new Set([from?.id, to.id])
  try {
    refuseStrangers((await look(store)).in_use, known)
  } catch (error) {
    if (!resumed) await thaw(store)
    throw error
  }
  let rewrapped = 0
  if (from !== null) {
    rewrapped += await pages((after) => rewrapBlobs(store, from, to, { limit: rows_at_once, after }), tell)
    rewrapped += await pages((after) => rewrapSecrets(store, from, to, { limit: rows_at_once, after }), tell)
  }
  const { sample, in_use } = await look(store)
  refuseStrangers(in_use, new Set([to.id]))
  const sealed = sealBlobs(blobs, to)
  for (const row of sample) {
    try {
      for await (const _ of sealed.read(row.project_id, row));
    } catch (error) {
      // The doctor tells of it; it says nothing about the key.
      if (!(error instanceof BlobMissing)) throw error
    }
  }
  return { rewrapped, total: [...in_use.values()].reduce((sum, n) => sum + n, 0), opened: sample.length }
}

/** Opens the database to services that have the key `key_id`, and to no others. */
export async function endRekey(store: Store, key_id: string): Promise<void> {
  await store.write(async (tx) => {
    await writeProperty(tx, 'master_key', key_id)
    await deleteProperty(tx, 'frozen')
  })
}

/** Whether an earlier run began the same change. */
async function begin(store: Store, from: MasterKey | null, to: MasterKey): Promise<boolean> {
  const why = await readFreeze(store.read)
  if (why !== null && why.by !== 'rekey')
    throw new AdminCommandError(`the master key cannot be changed now: ${spoken(why)}`)
  if (why !== null && why.to !== to.id)
    throw new AdminCommandError(
      `a change to master key ${why.to} was begun and not finished, and the key given now is ${to.id}: give that one again`,
    )
  if (why === null) {
    if (from === null || from.id === to.id)
      throw new AdminCommandError(`the new master key is the present one (${to.id})`)
    await freeze(store, { by: 'rekey', from: from.id, to: to.id })
  }
  try {
    await assertNoLiveProcess(store, 'the master key cannot be changed')
  } catch (error) {
    if (why === null) await thaw(store)
    throw error
  }
  return why !== null
}

async function pages(
  page: (after: string) => Promise<{ changed: number; last: string | null }>,
  tell: (done: number) => void,
): Promise<number> {
  let changed = 0
  for (let after: string | null = ''; after !== null; ) {
    const done: { changed: number; last: string | null } = await page(after)
    changed += done.changed
    after = done.last
    tell(changed)
  }
  return changed
}

type Page = { limit: number; after: string }

function rewrapBlobs(store: Store, from: MasterKey, to: MasterKey, page: Page) {
  return store.write(async (tx) => {
    const rows = await lockBlobKeys(tx, page)
    const old = rows.filter((row) => masterKeyIdOf(row.wrapped_key) === from.id)
    await replaceBlobKeys(
      tx,
      old.map((row) => ({
        ...row,
        wrapped_key: rewrap(row.wrapped_key, row.project_id, row.key, from, to),
      })),
    )
    return { changed: old.length, last: rows.length < page.limit ? null : (rows.at(-1)?.key ?? null) }
  })
}

function rewrapSecrets(store: Store, from: MasterKey, to: MasterKey, page: Page) {
  return store.write(async (tx) => {
    const rows = await lockSecrets(tx, page)
    let changed = 0
    for (const row of rows) {
      const renewed = (text: string): string => {
        if (masterKeyIdOf(text) !== from.id) return text
        changed++
        return rewrap(text, row.project_id, secretName(row.id), from, to)
      }
      await replaceSecrets(tx, {
        ...row,
        wrapped_secret: renewed(row.wrapped_secret),
        previous_secret: row.previous_secret === null ? null : renewed(row.previous_secret),
      })
    }
    return { changed, last: rows.length < page.limit ? null : (rows.at(-1)?.id ?? null) }
  })
}

type KeysInUse = ReadonlyMap<string | null, number>

/** How much each master key has wrapped (null: nothing of ours), and some of the blobs, drawn at random. */
async function look(store: Store): Promise<{ in_use: KeysInUse; sample: BlobRow[] }> {
  const in_use = new Map<string | null, number>()
  const count = (text: string): void => {
    const id = masterKeyIdOf(text)
    in_use.set(id, (in_use.get(id) ?? 0) + 1)
  }
  const sample: BlobRow[] = []
  let seen = 0
  for await (const rows of blobPages(store.read, ROWS_AT_ONCE))
    for (const row of rows) {
      count(row.wrapped_key)
      // Every row has the same chance to be among those kept.
      const place = seen < SAMPLE ? seen : randomInt(seen + 1)
      if (place < SAMPLE) sample[place] = row
      seen++
    }
  for await (const rows of pagesOf<WrappedSecrets>(ROWS_AT_ONCE, (last) =>
    store.write((tx) => lockSecrets(tx, { limit: ROWS_AT_ONCE, after: last?.id })),
  ))
    for (const row of rows) {
      count(row.wrapped_secret)
      if (row.previous_secret !== null) count(row.previous_secret)
    }
  return { in_use, sample }
}

function refuseStrangers(in_use: KeysInUse, known: ReadonlySet<string | undefined>): void {
  for (const [id, count] of in_use) {
    if (id === null)
      throw new AdminCommandError(`${count} wrapped keys are damaged; "offpeak doctor" names the blobs`)
    if (!known.has(id))
      throw new AdminCommandError(
        `${count} keys and secrets are wrapped by master key ${id}, which was not given: bring that key back first`,
      )
  }
}

// Puts a new master key's file in the place of the old one, which is kept beside it: backups made before need
// it. At no moment is there no file, or half a file, under the key's name, and running it again is safe.

/** The file of a new key until it wraps every key. */
export function nextKeyPath(path: string): string {
  return `${path}.new`
}

export function oldKeyPath(path: string): string {
  return `${path}.old`
}

/** Moves the file of the key to `oldKeyPath(path)`, and `nextKeyPath(path)` in its place. */
export async function switchKeyFile(path: string, service: KeyService | null = null): Promise<void> {
  await keepOld(path, service)
  await rename(nextKeyPath(path), path)
  await syncFolder(dirname(path))
}

/** Moves the file of the key to `oldKeyPath(path)`, where the new key comes from elsewhere. */
export async function retireKeyFile({ path, service }: KeyPlace): Promise<void> {
  await keepOld(path, service)
  await unlink(path)
  await syncFolder(dirname(path))
}

async function keepOld(path: string, service: KeyService | null): Promise<void> {
  const old = oldKeyPath(path)
  const [present, kept] = await Promise.all([readFile(path), readFile(old).catch(() => null)])
  if (kept?.equals(present)) return
  if (kept !== null) {
    // Another service may have encrypted it.
    const key = await readMasterKey(old, service).catch(() => null)
    await rename(old, `${old}.${key?.id ?? createHash('sha256').update(kept).digest('hex').slice(0, 16)}`)
  }
  await link(path, old)
  await syncFolder(dirname(path))
}
