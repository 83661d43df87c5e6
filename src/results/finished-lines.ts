// Finds a finished line by its number: in the blobs of a sealed chunk, or in the journals of an open one. With an index
// only the line's own bytes are read; blobs of earlier versions are scanned.
import type { SealedBlobs } from '../blobs/sealed.ts'
import { base32, parseLineRequestId } from '../domain/ids.ts'
import { readBlobRow } from '../store/blobs.ts'
import { readChunk } from '../store/chunks.ts'
import { readVisibleResults } from '../store/files.ts'
import type { BlobRow, ChunkRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import { type Ports, type ReadPorts, readChunkJournal } from './chunk-journal.ts'
import { findJournalled, JOURNAL_OWNER, type Journalled } from './journal.ts'
import { type LinePlace, placesInBlobs, readLineIndex } from './line-index.ts'
import { type Row, scanRows } from './scan-rows.ts'
import type { Span } from './stream-span.ts'

export interface FoundLine {
  line: number
  part: 'output' | 'error'
  audit: Span
  /** Null once its result file has been deleted or has expired. */
  result: Span | null
}

/** Result lines and audit records begin with their request ID, which contains the line number. */
const HEAD = '{"id":"'
const REQUEST_ID_LENGTH = 'req_'.length + 26 + base32(1).length
const HEAD_BYTES = HEAD.length + REQUEST_ID_LENGTH

/** Undefined if the line is not finished, or not in the chunk. */
export async function findLine(
  ports: ReadPorts,
  chunk: ChunkRow,
  line: number,
): Promise<FoundLine | undefined> {
  if (chunk.state === 'sealed') return await findSealed(ports, chunk, line)
  const found = (await openPlaces(ports, chunk)).find((one) => one.line === line)
  if (found) {
    const span = { project_id: JOURNAL_OWNER, blob: found.journal }
    return {
      line,
      part: found.part,
      audit: { ...span, range: found.audit },
      result: { ...span, range: found.result },
    }
  }
  // If it was sealed meanwhile, its journals are deleted.
  const now = await readChunk(ports.db, chunk.batch_id, chunk.idx)
  return now?.state === 'sealed' ? await findSealed(ports, now, line) : undefined
}

/** The journalled lines of an open chunk. Journals that are deleted meanwhile are left out. */
export async function openPlaces(ports: Ports, chunk: ChunkRow): Promise<Journalled[]> {
  const { written, unusable } = await readChunkJournal(ports, chunk, findJournalled)
  for (const { part, error } of unusable)
    if (error !== null && (await readBlobRow(ports.db, part.journal_blob))) throw error
  return written
}

async function findSealed(ports: ReadPorts, chunk: ChunkRow, line: number): Promise<FoundLine | undefined> {
  const { db, sealed, now } = ports
  const audit = await rowOf(db, chunk.audit_blob)
  if (!audit) return undefined
  const results = {
    output: await readVisibleResults(db, chunk, 'output', now),
    error: await readVisibleResults(db, chunk, 'error', now),
  }
  const found =
    (await sealedPlaces(ports, chunk))?.find((one) => one.line === line) ??
    (await scanFor(sealed, line, audit, results))
  if (!found) return undefined
  const blob = results[found.part]
  return {
    line,
    part: found.part,
    audit: { project_id: audit.project_id, blob: audit, range: found.audit },
    result: blob ? { project_id: blob.project_id, blob, range: found.result } : null,
  }
}

/** The lines of a sealed chunk in order, by its index; null if an earlier version sealed it without one. */
export async function sealedPlaces({ db, sealed }: Ports, chunk: ChunkRow): Promise<LinePlace[] | null> {
  const audit = await rowOf(db, chunk.audit_blob)
  const index = audit && (await readLineIndex(sealed, audit.project_id, audit))
  return index ? placesInBlobs(index) : null
}

async function scanFor(
  sealed: SealedBlobs,
  line: number,
  audit: BlobRow,
  results: { output: BlobRow | undefined; error: BlobRow | undefined },
): Promise<LinePlace | undefined> {
  const record = await scanBlob(sealed, audit, line)
  if (!record) return undefined
  for (const part of ['output', 'error'] as const) {
    const blob = results[part]
    const result = blob && (await scanBlob(sealed, blob, line))
    if (result) return { line, part, audit: record, result }
  }
  // Its result file was deleted: the part follows from the file that is left.
  return { line, part: results.output ? 'error' : 'output', audit: record, result: { start: 0, end: 0 } }
}

async function scanBlob(sealed: SealedBlobs, blob: BlobRow, line: number): Promise<Row | undefined> {
  for await (const row of scanResults(sealed, blob)) if (row.line === line) return row
  return undefined
}

/** The rows of an output, error or audit blob, with their line numbers. */
export async function* scanResults(
  sealed: SealedBlobs,
  blob: BlobRow,
): AsyncGenerator<Row & { line: number }, void, undefined> {
  for await (const row of scanRows(sealed.read(blob.project_id, blob), HEAD_BYTES)) {
    const address = parseLineRequestId(row.head.slice(HEAD.length))
    if (!address) throw new Error(`a row of ${blob.key} does not begin with its request ID`)
    yield { ...row, line: address.line }
  }
}

async function rowOf(db: Reader, key: string | null): Promise<BlobRow | undefined> {
  return key === null ? undefined : await readBlobRow(db, key)
}
