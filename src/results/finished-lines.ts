// The finished lines of a chunk: in the blobs of a sealed chunk, by the index at their end, or in the journals of an open
// one. A line is read from its place, without the others.
import { readBlobRow } from '../store/blobs.ts'
import { readChunk } from '../store/chunks.ts'
import { readVisibleResults } from '../store/files.ts'
import type { ChunkRow } from '../store/schema.ts'
import { type Ports, readChunkJournal } from './chunk-journal.ts'
import { findJournalled } from './journal.ts'
import { placesInBlobs, readLineIndex } from './line-index.ts'
import type { Span } from './stream-span.ts'

/** What users read with. */
export interface ReadPorts extends Ports {
  /** Results and inputs whose file has expired by then are not read (Unix ms). */
  now: number
}

export interface FinishedLine {
  line: number
  part: 'output' | 'error'
  audit: Span
  /** Null once its result file has been deleted or has expired. */
  result: Span | null
}

/** In order. Journals that are deleted meanwhile are left out, unless their chunk was sealed: then its blobs are read. */
export async function finishedLines(ports: ReadPorts, chunk: ChunkRow): Promise<FinishedLine[]> {
  if (chunk.state === 'sealed') return await inBlobs(ports, chunk)
  const { written, unusable } = await readChunkJournal(ports, chunk, findJournalled)
  if (written.length < chunk.completed + chunk.failed) {
    const now = await readChunk(ports.db, chunk.batch_id, chunk.idx)
    if (now?.state === 'sealed') return await inBlobs(ports, now)
  }
  for (const { part, error } of unusable)
    if (error !== null && (await readBlobRow(ports.db, part.journal_blob))) throw error
  return written.sort((a, b) => a.line - b.line)
}

/** Undefined if the line is not finished, or not in the chunk. */
export async function findLine(
  ports: ReadPorts,
  chunk: ChunkRow,
  line: number,
): Promise<FinishedLine | undefined> {
  return (await finishedLines(ports, chunk)).find((one) => one.line === line)
}

async function inBlobs({ db, sealed, now }: ReadPorts, chunk: ChunkRow): Promise<FinishedLine[]> {
  const blob = chunk.audit_blob === null ? undefined : await readBlobRow(db, chunk.audit_blob)
  if (!blob) return []
  const { project_id } = blob
  const results = {
    output: await readVisibleResults(db, chunk, 'output', now),
    error: await readVisibleResults(db, chunk, 'error', now),
  }
  return placesInBlobs(await readLineIndex(sealed, project_id, blob)).map(({ line, part, audit, result }) => {
    const of = results[part]
    return {
      line,
      part,
      audit: { project_id, blob, range: audit },
      result: of ? { project_id, blob: of, range: result } : null,
    }
  })
}
