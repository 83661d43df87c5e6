// Replaces the master key of a database, and switches the key files. Only wrapped keys are rewritten; blobs stay as
// they are. Each wrapped key names its master key and each page is a transaction, so an interrupted rekey is run again
// and continues.
import { hash, randomInt } from 'node:crypto'
import { link, readFile, rename, unlink } from 'node:fs/promises'
import { dirname } from 'node:path'
import { BlobMissing, type Blobs } from '../blobs/blobs.ts'
import { syncFolder } from '../blobs/folders.ts'
import type { KeyService } from '../blobs/key-service.ts'
import { type KeyPlace, type MasterKey, readMasterKey } from '../blobs/master-key.ts'
import { sealBlobs } from '../blobs/sealed.ts'
import { masterKeyIdOf, rewrap } from '../blobs/wrap-key.ts'
import { counted } from '../domain/text.ts'
import { secretName } from '../notify/webhook-signature.ts'
import { readBlobRow } from '../store/blobs.ts'
import { deleteProperty, writeProperty } from '../store/database-properties.ts'
import { pagesOf } from '../store/page.ts'
import { putInto } from '../store/rows.ts'
import type { Store, Writer } from '../store/store.ts'
import { keyOfRow, lockRows, type Row, type RowPage, tablePages } from '../store/table-copy.ts'
import {
  AdminCommandError,
  assertNoLiveProcess,
  freeze,
  freezeReason,
  readFreeze,
  thaw,
} from './database-freeze.ts'

const ROWS_AT_ONCE = 500
/** The number of blobs that are opened afterwards. */
const SAMPLE = 20

export interface Rekeyed {
  /** The number of blob keys and webhook secrets that this run rewrapped. */
  rewrapped: number
  /** The number of blobs and secrets under the new key, rewrapped by this run and earlier ones. */
  total: number
  /** The number of blobs that were read to their end under the new key. */
  opened: number
}

interface RekeyDeps {
  store: Store
  blobs: Blobs
}

/**
 * Rewraps every key that `from` wraps, and verifies that `to` wraps all of them. The database stays closed to services
 * until `endRekey`. `from` is null if the file of the old key has been replaced already: then it may wrap none. Throws
 * AdminCommandError.
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
    rejectUnknownKeys((await countWrappedKeys(store)).in_use, known)
  } catch (error) {
    if (!resumed) await thaw(store)
    throw error
  }
  let rewrapped = 0
  if (from !== null)
    for (const place of PLACES) {
      const pages = pagesOf<Row>(rows_at_once, (last) => {
        const after = last ? keyOfRow(place.table, last) : null
        return store.write((tx) => rewrapPage(tx, place, from, to, { limit: rows_at_once, after }))
      })
      for await (const rows of pages) {
        rewrapped += rows.flatMap((row) => wrappedIn(row, place, from)).length
        tell(rewrapped)
      }
    }
  const { sample, in_use } = await countWrappedKeys(store)
  rejectUnknownKeys(in_use, new Set([to.id]))
  const sealed = sealBlobs(blobs, to)
  for (const key of sample) {
    const row = await readBlobRow(store.read, key)
    try {
      if (row) for await (const _ of sealed.read(row.project_id, row));
    } catch (error) {
      // A missing blob says nothing about the key, and the doctor reports it.
      if (!(error instanceof BlobMissing)) throw error
    }
  }
  return { rewrapped, total: [...in_use.values()].reduce((sum, n) => sum + n, 0), opened: sample.length }
}

/** Opens the database to services with the key `key_id` only. */
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
    throw new AdminCommandError(`the master key cannot be changed now: ${freezeReason(why)}`)
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

/** A table with keys or secrets that the master key wraps, their columns, and the name to which a row binds them. */
const PLACES = [
  { table: 'blobs', columns: ['wrapped_key'], nameOf: ({ key }: Row) => String(key) },
  {
    table: 'webhooks',
    columns: ['wrapped_secret', 'previous_secret'],
    nameOf: ({ id }: Row) => secretName(String(id)),
  },
] as const
type Place = (typeof PLACES)[number]

/** The wrapped keys and secrets of a row, by column; only those that `by` wraps, if given. */
function wrappedIn(row: Row, { columns }: Place, by?: MasterKey): [column: string, text: string][] {
  return columns.flatMap((column) => {
    const text = row[column]
    // The key of a blob that is pending deletion is destroyed.
    if (typeof text !== 'string' || typeof row.deletion_pending_since === 'number') return []
    return !by || masterKeyIdOf(text) === by.id ? [[column, text]] : []
  })
}

/** Rewraps what `from` wraps on a page; returns its rows as they were. */
async function rewrapPage(
  tx: Writer,
  place: Place,
  from: MasterKey,
  to: MasterKey,
  page: RowPage,
): Promise<Row[]> {
  const { table, columns, nameOf } = place
  const rows = await lockRows(tx, table, page)
  const renewed = rows.flatMap((row) => {
    const texts = wrappedIn(row, place, from).map(([column, text]) => {
      return [column, rewrap(text, String(row.project_id), nameOf(row), from, to)]
    })
    return texts.length === 0 ? [] : [{ ...row, ...Object.fromEntries(texts) }]
  })
  await putInto(tx, table, renewed, columns)
  return rows
}

type KeysInUse = ReadonlyMap<string | null, number>

/** The number of keys wrapped by each master key (null: not a wrapped key), and the keys of a random sample of blobs. */
async function countWrappedKeys(store: Store): Promise<{ in_use: KeysInUse; sample: string[] }> {
  const in_use = new Map<string | null, number>()
  const sample: string[] = []
  let seen = 0
  for (const place of PLACES)
    for await (const rows of tablePages(store.read, place.table, ROWS_AT_ONCE))
      for (const row of rows)
        for (const [, text] of wrappedIn(row, place)) {
          const id = masterKeyIdOf(text)
          in_use.set(id, (in_use.get(id) ?? 0) + 1)
          if (place.table !== 'blobs') continue
          // Reservoir sampling gives every row the same chance.
          const at = seen < SAMPLE ? seen : randomInt(seen + 1)
          if (at < SAMPLE) sample[at] = place.nameOf(row)
          seen++
        }
  return { in_use, sample }
}

function rejectUnknownKeys(in_use: KeysInUse, known: ReadonlySet<string | undefined>): void {
  for (const [id, count] of in_use) {
    if (id === null)
      throw new AdminCommandError(
        `${counted(count, 'wrapped key is', 'wrapped keys are')} damaged; "offpeak doctor" names the blobs`,
      )
    if (!known.has(id))
      throw new AdminCommandError(
        `${counted(count, 'key or secret is', 'keys and secrets are')} wrapped by master key ${id}, which was not given: bring that key back first`,
      )
  }
}

// Replaces the master key's file by that of the new one; the old one is kept beside it, since earlier backups need it.
// At every moment the key's name has a complete file, and a repeated run is safe.

/** The path of a new key's file until the new key wraps every key. */
export function nextKeyPath(path: string): string {
  return `${path}.new`
}

export function oldKeyPath(path: string): string {
  return `${path}.old`
}

/** Moves the file of the key to `oldKeyPath(path)`, and `nextKeyPath(path)` to its path. */
export async function switchKeyFile(path: string, service: KeyService | null = null): Promise<void> {
  await keepOld(path, service)
  await rename(nextKeyPath(path), path)
  await syncFolder(dirname(path))
}

/** Moves the file of the key to `oldKeyPath(path)`; the new key comes from elsewhere. */
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
    // Another key service may have encrypted the old file.
    const key = await readMasterKey(old, service).catch(() => null)
    await rename(old, `${old}.${key?.id ?? hash('sha256', kept).slice(0, 16)}`)
  }
  await link(path, old)
  await syncFolder(dirname(path))
}
