// Finds one finished line by its number: in the blobs of a sealed chunk, or in the journals of one that is open. With
// an index only the line's own bytes are read; blobs of earlier versions are scanned, and nothing of them is kept.
import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { base32, parseLineRequestId } from '../domain/ids.ts'
import { readBlobRow } from '../store/blob-rows.ts'
import { readChunk } from '../store/chunks.ts'
import { listJournalParts } from '../store/journal-parts.ts'
import type { BlobRow, ChunkRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import { findJournalled, JOURNAL_OWNER, type Journalled } from './journal.ts'
import { type LinePlace, placesInBlobs, readLineIndex } from './line-index.ts'
import { type Row, scanRows } from './scan-rows.ts'
import type { Span } from './stream-span.ts'

export interface Ports {
  db: Reader
  sealed: SealedBlobs
}

export interface FoundLine {
  line: number
  part: 'output' | 'error'
  audit: Span
  /** Null once its result file has been deleted. */
  result: Span | null
}

/** Result lines and audit records begin with their request ID, and that names the line. */
const HEAD = '{"id":"'
const REQUEST_ID_LENGTH = 'req_'.length + 26 + base32(1).length
const HEAD_BYTES = HEAD.length + REQUEST_ID_LENGTH

/** Undefined while the line is not finished, or when the chunk has no such line. */
export async function findLine(ports: Ports, chunk: ChunkRow, line: number): Promise<FoundLine | undefined> {
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
  // It may have been sealed just now, and its journals are gone.
  const now = await readChunk(ports.db, chunk.batch_id, chunk.idx)
  return now?.state === 'sealed' ? await findSealed(ports, now, line) : undefined
}

/** The lines that the journals of an open chunk have. A journal that goes meanwhile is left out. */
export async function openPlaces({ db, sealed }: Ports, chunk: ChunkRow): Promise<Journalled[]> {
  const found: Journalled[] = []
  const seen = new Set<number>()
  for (const part of await listJournalParts(db, chunk.batch_id, chunk.idx)) {
    const blob = await readBlobRow(db, part.journal_blob)
    if (!blob) continue
    try {
      for (const place of await findJournalled(sealed, { part, blob })) {
        // Of a line that older versions committed twice the first commit counts.
        if (seen.has(place.line)) continue
        seen.add(place.line)
        found.push(place)
      }
    } catch (error) {
      // One that is still there and cannot be read is a fault.
      if (!isDamaged(error) || (await readBlobRow(db, part.journal_blob))) throw error
    }
  }
  return found
}

async function findSealed(ports: Ports, chunk: ChunkRow, line: number): Promise<FoundLine | undefined> {
  const { db, sealed } = ports
  const audit = await rowOf(db, chunk.audit_blob)
  if (!audit) return undefined
  const results = {
    output: await rowOf(db, chunk.output_blob),
    error: await rowOf(db, chunk.error_blob),
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

/** The lines of a sealed chunk by its index, in order; null for one that was sealed by an earlier version. */
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
  // Its result file is gone, and with it which one that was.
  return { line, part: results.output ? 'error' : 'output', audit: record, result: { start: 0, end: 0 } }
}

async function scanBlob(sealed: SealedBlobs, blob: BlobRow, line: number): Promise<Row | undefined> {
  for await (const row of scanResults(sealed, blob)) if (row.line === line) return row
  return undefined
}

/** The rows of an output, error or audit blob, and which lines they are of. */
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
