// Deletes the results of a batch that are not kept, once they were fetched. A result file was fetched when a caller has
// been sent all its bytes, in any number of ranges, or all its lines in pages of results; or when it was exported.
// Moving its `expires_at` forward ends it: users no longer see it, and maintenance destroys its keys. A crash before
// the fetch is recorded leaves the file to the grace period.
import { isTerminal } from '../domain/batch.ts'
import { covers, type Fetched, readRetention, withRange } from '../domain/retention.ts'
import { setBatch } from '../store/batches.ts'
import { expireFile } from '../store/files.ts'
import { lockRow, readRow } from '../store/rows.ts'
import type { BatchRow } from '../store/schema.ts'
import type { Ports, Writer } from '../store/store.ts'

const PARTS = ['output', 'error'] as const

/** The end of a range through the last line or byte. */
export const TO_END = Number.MAX_SAFE_INTEGER

export interface Fetch {
  part: (typeof PARTS)[number] | 'all'
  unit: 'bytes' | 'lines'
  range: readonly [start: number, end: number]
}

export const EVERYTHING: Fetch = { part: 'all', unit: 'lines', range: [0, TO_END] }
export const NOTHING: Fetch = { part: 'all', unit: 'lines', range: [0, 0] }

/** Records that a caller has been sent results of the batch. */
export async function recordFetch(
  { store, clock }: Pick<Ports, 'store' | 'clock'>,
  { id, retention }: Pick<BatchRow, 'id' | 'retention'>,
  fetch: Fetch,
): Promise<void> {
  if (retention === null) return
  await store.write(async (tx) => {
    const batch = await lockRow(tx, 'batches', { id })
    if (batch) await endFetched(tx, batch, fetch, clock.now())
  })
}

/** Adds fetched ranges to the batch, which the transaction has locked, and ends files that were fetched completely. */
export async function endFetched(
  tx: Writer,
  batch: BatchRow,
  { part: asked, unit, range }: Fetch,
  now: number,
): Promise<void> {
  const retention = readRetention(batch.retention)
  if (retention === null) return
  const before: Fetched = JSON.parse(batch.fetched ?? '{}')
  const parts = PARTS.filter((part) => asked === 'all' || asked === part)
  const added = parts.map((part) => {
    const name = `${part}_${unit}`
    return [name, withRange(before[name] ?? [], range)] as const
  })
  const fetched: Fetched = { ...before, ...Object.fromEntries(added) }
  await setBatch(tx, batch.id, { fetched: JSON.stringify(fetched) })
  // A pending export reads the files as well.
  if (!isTerminal(batch.status) || batch.output_url_status === 'pending') return
  for (const part of PARTS) {
    const id = batch[`${part}_file_id`]
    const file = id === null ? undefined : await readRow(tx, 'files', { id })
    if (!file) continue
    const isFetched = covers(fetched[`${part}_bytes`], file.bytes) || covers(fetched[`${part}_lines`], TO_END)
    if (isFetched) await expireFile(tx, file.id, now + retention.results_ms)
  }
}
