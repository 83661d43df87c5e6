// Finds the audit record of a line by the address in its request ID: batch and line number name the chunk,
// and the chunk's audit blob (or, while it is open, its journals) holds the record.
import type { SealedBlobs } from '../blobs/sealed.ts'
import { JOURNAL_OWNER } from '../results/commit.ts'
import { readJournal } from '../results/journal.ts'
import { readBatch } from '../store/batches.ts'
import { readBlobRow } from '../store/blob-rows.ts'
import { readChunkOfLine } from '../store/chunks.ts'
import { listJournalParts } from '../store/journal-parts.ts'
import type { ChunkRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'

export interface LineRecordDeps {
  store: Store
  sealed: SealedBlobs
}

/**
 * The record, with the line's `response` while its result file exists (null afterwards, and for lines that
 * failed). Undefined when the batch is not the project's, has no such line, or has not finished it yet.
 */
export async function readLineRecord(
  deps: LineRecordDeps,
  project_id: string,
  batch_id: string,
  line: number,
): Promise<object | undefined> {
  const { store } = deps
  const batch = await readBatch(store.read, project_id, batch_id)
  const chunk = batch && (await readChunkOfLine(store.read, batch_id, line))
  if (!chunk) return undefined
  const found =
    chunk.state === 'sealed' ? await fromBlobs(deps, chunk, line) : await fromJournal(deps, chunk, line)
  if (!found) return undefined
  const result = found.result === null ? null : JSON.parse(found.result)
  return { ...JSON.parse(found.audit), response: result?.response ?? null }
}

interface Found {
  audit: string
  result: string | null
}

async function fromJournal(
  { store, sealed }: LineRecordDeps,
  chunk: ChunkRow,
  line: number,
): Promise<Found | undefined> {
  for (const part of await listJournalParts(store.read, chunk.batch_id, chunk.idx)) {
    const blob = await readBlobRow(store.read, part.journal_blob)
    if (!blob) continue
    const entries = await readJournal(sealed, JOURNAL_OWNER, [{ part, blob }])
    const entry = entries.find((one) => one.line === line)
    if (entry) return { audit: String(entry.audit), result: String(entry.result) }
  }
  return undefined
}

async function fromBlobs(deps: LineRecordDeps, chunk: ChunkRow, line: number): Promise<Found | undefined> {
  const audit = await lineOf(
    deps,
    chunk.audit_blob,
    (text) => text.includes(`"line":${line},`) && JSON.parse(text).line === line,
  )
  if (audit === undefined) return undefined
  const id: unknown = JSON.parse(audit).id
  const result = await lineOf(deps, chunk.output_blob, (text) => text.startsWith(`{"id":"${id}"`))
  return { audit, result: result ?? null }
}

/** The first line of a blob that `matches`; undefined when there is none, or the blob is gone. */
async function lineOf(
  { store, sealed }: LineRecordDeps,
  key: string | null,
  matches: (text: string) => boolean,
): Promise<string | undefined> {
  const blob = key === null ? undefined : await readBlobRow(store.read, key)
  if (!blob) return undefined
  const text = String(await sealed.readAll(blob.project_id, blob))
  return text.split('\n').find((one) => one !== '' && matches(one))
}
