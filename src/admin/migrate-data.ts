// Moves all data of a service to other stores: every row, and every blob byte for byte. Both sides use the same master
// key. Each page of rows is committed together with the progress of the move, and blobs are written atomically, so an
// interrupted move can be continued. Nothing counts as moved until both sides have been compared.

import { randomInt, randomUUID } from 'node:crypto'
import { type Blobs, nullIfMissing } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { mapAhead } from '../domain/project-queue.ts'
import { counted } from '../domain/text.ts'
import { blobPages } from '../store/blobs.ts'
import { deleteProperty, readProperty, writeProperty } from '../store/database-properties.ts'
import { insertInto } from '../store/rows.ts'
import type { BlobRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { type Cell, keyOfRow, readRows, sumTable, TABLE_NAMES, tablePages } from '../store/table-copy.ts'
import { requeueExpiredLeases } from '../store/workers.ts'
import {
  AdminCommandError,
  assertNoLiveProcess,
  type Freeze,
  freeze,
  freezeReason,
  readFreeze,
  thaw,
} from './database-freeze.ts'

const ROWS_AT_ONCE = 500
const BLOBS_AT_ONCE = 16
/** The number of blobs that are opened at the target afterwards. */
const SAMPLE = 20

/** Stores, and their name for messages, which has no secrets. */
export interface Place {
  name: string
  store: Store
  blobs: Blobs
}

export interface Moved {
  rows: number
  blobs: number
  bytes: number
  /** Keys of blobs that the source itself had lost. */
  missing: string[]
  /** The number of blobs that were read to their end at the target. */
  opened: number
}

interface MoveOptions {
  /** Opens blobs at the target. */
  sealed: SealedBlobs
  master_key_id: string
  /** Called with the progress as text. */
  tell?: (text: string) => void
  rows_at_once?: number
}

/** Moves all data. Throws AdminCommandError when a service runs, the target is not empty, or the copies differ. */
export async function migrateData(from: Place, to: Place, options: MoveOptions): Promise<Moved> {
  const { tell = () => {}, rows_at_once = ROWS_AT_ONCE } = options
  const id = await begin(from, to)
  // Leases of crashed workers would never expire at the target.
  await from.store.write((tx) => requeueExpiredLeases(tx))
  await copyTables(from.store, to.store, rows_at_once, tell)
  await copyBlobs(from, to, rows_at_once, tell)
  tell('comparing both sides')
  const rows = await compareTables(from.store, to.store, rows_at_once)
  const compared = await compareBlobs(from, to, options.sealed)
  await freeze(from.store, { by: 'move_out', id, to: to.name, done: true })
  await to.store.write(async (tx) => {
    await writeProperty(tx, 'master_key', options.master_key_id)
    await deleteProperty(tx, 'move_progress')
    await deleteProperty(tx, 'frozen')
  })
  return { rows, ...compared }
}

/** Lets services run at a place whose content was moved elsewhere. Throws AdminCommandError if none was. */
export async function releaseMoved(place: Pick<Place, 'store'>): Promise<void> {
  const why = await readFreeze(place.store.read)
  if (why === null) throw new AdminCommandError('nothing was moved away from here: a service may run')
  if (why.by !== 'move_out') throw new AdminCommandError(`this cannot be released: ${freezeReason(why)}`)
  await thaw(place.store)
}

/** Freezes both sides for a move. Returns the move's ID. */
async function begin(from: Place, to: Place): Promise<string> {
  const left = await readFreeze(from.store.read)
  const arriving = await readFreeze(to.store.read)
  const refused = (why: Freeze): never => {
    throw new AdminCommandError(
      `${why === left ? from.name : to.name} cannot take part in a move: ${freezeReason(why)}`,
    )
  }
  if (left !== null && left.by !== 'move_out') refused(left)
  if (arriving !== null && arriving.by !== 'move_in') refused(arriving)
  const id = left?.by === 'move_out' ? left.id : randomUUID()
  if (arriving?.by === 'move_in') {
    if (left === null || arriving.id !== id) refused(arriving)
  } else {
    if (left?.by === 'move_out' && left.done) refused(left)
    await rejectContent(to)
    await freeze(from.store, { by: 'move_out', id, to: to.name, done: false })
    await freeze(to.store, { by: 'move_in', id, from: from.name })
  }
  try {
    await assertNoLiveProcess(from.store, `nothing can be moved from ${from.name}`)
    await assertNoLiveProcess(to.store, `nothing can be moved to ${to.name}`)
  } catch (error) {
    if (left === null) {
      await thaw(to.store)
      await thaw(from.store)
    }
    throw error
  }
  return id
}

async function rejectContent({ name, store, blobs }: Place): Promise<void> {
  for (const table of TABLE_NAMES) {
    const rows = await readRows(store.read, table, { limit: 1, after: null })
    if (rows.length > 0)
      throw new AdminCommandError(`${name} is not empty (${table} has rows): move to a new database`)
  }
  for await (const { key } of blobs.list(''))
    throw new AdminCommandError(
      `${name} is not empty (there is a blob ${key}): move to an empty folder or prefix`,
    )
}

/** The progress of a move: all tables before `table` are copied, and that table up to the key `after`. */
interface Progress {
  table: string
  after: Cell[] | null
}

/** The `table` of a move's progress once all tables are copied. */
const BLOBS = '(blobs)'

async function readProgress(store: Store): Promise<Progress | null> {
  const text = await readProperty(store.read, 'move_progress')
  return text === null ? null : JSON.parse(text)
}

async function copyTables(
  from: Store,
  to: Store,
  limit: number,
  tell: (text: string) => void,
): Promise<void> {
  const progress = await readProgress(to)
  if (progress?.table === BLOBS) return
  const first = progress === null ? 0 : TABLE_NAMES.indexOf(progress.table)
  for (const table of TABLE_NAMES.slice(first)) {
    const after = table === progress?.table ? progress.after : null
    let copied = 0
    for await (const rows of tablePages(from.read, table, limit, after)) {
      const last = rows.at(-1)
      if (!last) break
      const reached: Progress = { table, after: keyOfRow(table, last) }
      await to.write(async (tx) => {
        await insertInto(tx, table, rows)
        await writeProperty(tx, 'move_progress', JSON.stringify(reached))
      })
      copied += rows.length
      tell(`${table}: ${counted(copied, 'row')} copied`)
    }
  }
  await to.write((tx) =>
    writeProperty(tx, 'move_progress', JSON.stringify({ table: BLOBS, after: null } satisfies Progress)),
  )
}

async function copyBlobs(from: Place, to: Place, limit: number, tell: (text: string) => void): Promise<void> {
  const progress = await readProgress(to.store)
  const first = progress?.after?.[0] ?? null
  let copied = 0
  for await (const rows of blobPages(to.store.read, limit, first === null ? undefined : String(first))) {
    // The end of the move reports blobs that the source has lost.
    const copies = mapAhead(rows, BLOBS_AT_ONCE, ({ key }) =>
      to.blobs.put(key, from.blobs.read(key)).catch(nullIfMissing),
    )
    for await (const _ of copies);
    const last = rows.at(-1)
    if (!last) break
    const reached: Progress = { table: BLOBS, after: [last.key] }
    await to.store.write((tx) => writeProperty(tx, 'move_progress', JSON.stringify(reached)))
    copied += rows.length
    tell(`${counted(copied, 'blob')} copied`)
  }
}

async function compareTables(from: Store, to: Store, rows_at_once: number): Promise<number> {
  let rows = 0
  for (const table of TABLE_NAMES) {
    const there = await sumTable(from.read, table, rows_at_once)
    const here = await sumTable(to.read, table, rows_at_once)
    if (there.sha256 !== here.sha256)
      throw new AdminCommandError(
        `the table ${table} differs: ${counted(there.rows, 'row was', 'rows were')} to be moved, ${here.rows} ${here.rows === 1 ? 'is' : 'are'} there. Something wrote to one of the databases meanwhile; begin again with an empty target`,
      )
    rows += here.rows
  }
  return rows
}

async function compareBlobs(from: Place, to: Place, sealed: SealedBlobs): Promise<Omit<Moved, 'rows'>> {
  const result = { blobs: 0, bytes: 0, missing: [] as string[], opened: 0 }
  const sample: BlobRow[] = []
  for await (const rows of blobPages(to.store.read, ROWS_AT_ONCE)) {
    const sizes = mapAhead(rows, BLOBS_AT_ONCE, async (row) => ({
      row,
      there: await from.blobs.size(row.key).catch(nullIfMissing),
      here: await to.blobs.size(row.key).catch(nullIfMissing),
    }))
    for await (const { row, there, here } of sizes) {
      if (there !== here)
        throw new AdminCommandError(
          `blob ${row.key} differs: ${there ?? 0} bytes at the source, ${here ?? 0} at the target; begin again with an empty target`,
        )
      if (here === null) {
        result.missing.push(row.key)
        continue
      }
      const place = result.blobs < SAMPLE ? result.blobs : randomInt(result.blobs + 1)
      if (place < SAMPLE) sample[place] = row
      result.blobs++
      result.bytes += here
    }
  }
  for (const row of sample) {
    for await (const _ of sealed.read(row.project_id, row));
    result.opened++
  }
  return result
}
