// Seals a chunk: writes its results in input order into one output, one error and one audit blob; the audit blob ends
// with an index (line-index.ts). Results are streamed from journals. Empty blobs are not written.
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import { freeBuffer } from '../domain/free-buffer.ts'
import type { ChunkSeal } from '../store/chunks.ts'
import type { ChunkResults } from './chunk-results.ts'
import { encodeLineIndex } from './line-index.ts'
import { readSpans } from './read-spans.ts'

export interface SealedChunk {
  seal: ChunkSeal
  blobs: SealedBlob[]
  output_lines: number
  error_lines: number
}

type Source = Iterable<Buffer> | AsyncIterable<Buffer>

/** As much as a frame of a blob takes. */
const PIECE_BYTES = 256 * 1024

/**
 * Writes the blobs of a chunk under keys of this attempt, once every line has a result. Throws BlobMissing or BlobDamaged
 * if a journal cannot be read.
 */
export async function sealChunk(
  sealed: SealedBlobs,
  chunk: { project_id: string; batch_id: string; idx: number },
  attempt: string,
  results: ChunkResults,
): Promise<SealedChunk> {
  if (results.lineCount === 0) throw new Error('a chunk without lines cannot be sealed')
  if (results.unfinished > 0) throw new Error('a chunk with unfinished lines cannot be sealed')
  const all = Array.from({ length: results.lineCount }, (_, position) => position)
  const index = encodeLineIndex(results.sizes(all))
  const put = async (name: string, source: Source): Promise<SealedBlob> => {
    const key = `batches/${chunk.batch_id}/${String(chunk.idx).padStart(7, '0')}-${attempt}-${name}`
    return await sealed.put(chunk.project_id, key, source)
  }
  const outputs = all.filter((position) => !results.isError(position))
  const errors = all.filter((position) => results.isError(position))
  const pieces: Buffer[] = []
  const rows = (
    positions: readonly number[],
    field: 'result' | 'audit',
    tail: Buffer | null = null,
  ): Source => {
    if (results.isInMemory) return copied(results, positions, field, tail, pieces)
    const spans = positions.map((position) => results.fieldOf(position, field))
    return readSpans(sealed, tail === null ? spans : [...spans, tail])
  }
  const [output, error, audit] = await Promise.all([
    outputs.length === 0 ? null : put('output', rows(outputs, 'result')),
    errors.length === 0 ? null : put('error', rows(errors, 'result')),
    put('audit', rows(all, 'audit', index)),
  ])
  for (const piece of pieces) freeBuffer(piece)
  return {
    seal: {
      output_blob: output?.key ?? null,
      output_bytes: output?.bytes ?? 0,
      error_blob: error?.key ?? null,
      error_bytes: error?.bytes ?? 0,
      audit_blob: audit.key,
    },
    blobs: [output, error, audit].filter((blob) => blob !== null),
    output_lines: outputs.length,
    error_lines: errors.length,
  }
}

/** Fields that are in memory, gathered into `pieces`: a view of each would be an object for each line. */
function* copied(
  results: ChunkResults,
  positions: readonly number[],
  field: 'result' | 'audit',
  tail: Buffer | null,
  pieces: Buffer[],
): Generator<Buffer> {
  let left = results.bytesOf(positions, field)
  const newPiece = (bytesMin: number): Buffer => {
    const piece = Buffer.allocUnsafeSlow(Math.max(bytesMin, Math.min(left, PIECE_BYTES)))
    pieces.push(piece)
    return piece
  }
  let piece = newPiece(0)
  let at = 0
  for (const position of positions) {
    const bytes = results.fieldBytes(position, field)
    if (at + bytes > piece.length) {
      if (at > 0) yield piece.subarray(0, at)
      left -= at
      at = 0
      piece = newPiece(bytes)
    }
    at += results.copyField(position, field, piece, at)
  }
  if (at > 0) yield piece.subarray(0, at)
  if (tail !== null) yield tail
}
