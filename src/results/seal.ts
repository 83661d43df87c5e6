// Seals a chunk: writes its results in input order into one output, one error and one audit blob; the audit blob ends
// with an index (line-index.ts). Results are streamed from journals. Empty blobs are not written.
import { FRAME_BYTES } from '../blobs/frame-cipher.ts'
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import { largeBuffer } from '../domain/free-buffer.ts'
import type { ChunkSeal } from '../store/chunks.ts'
import type { ChunkResults } from './chunk-results.ts'
import { encodeLineIndex } from './line-index.ts'
import { readSpans } from './read-content.ts'

export interface SealedChunk {
  seal: ChunkSeal
  blobs: SealedBlob[]
  output_lines: number
  error_lines: number
}

type Source = Iterable<Buffer> | AsyncIterable<Buffer>

/**
 * Writes the blobs of a chunk under keys of this attempt, once every line has a result. Throws BlobMissing or
 * BlobDamaged if a journal cannot be read.
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
  const { isInMemory } = results
  const put = async (name: string, source: Source): Promise<SealedBlob> => {
    const key = `batches/${chunk.batch_id}/${String(chunk.idx).padStart(7, '0')}-${attempt}-${name}`
    return await sealed.put(chunk.project_id, key, source, isInMemory)
  }
  const outputs = all.filter((position) => !results.isError(position))
  const errors = all.filter((position) => results.isError(position))
  const rows = (positions: readonly number[], field: 'result' | 'audit', tail = NOTHING): Source => {
    if (isInMemory) return framesOf(results, positions, field, tail)
    const spans = positions.map((position) => results.fieldOf(position, field))
    return readSpans(sealed, [...spans, tail])
  }
  const [output, error, audit] = await Promise.all([
    outputs.length === 0 ? null : put('output', rows(outputs, 'result')),
    errors.length === 0 ? null : put('error', rows(errors, 'result')),
    put('audit', rows(all, 'audit', index)),
  ])
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

/** Copies fields in memory into frames: a view of each would be an object for each line. */
function* framesOf(
  results: ChunkResults,
  positions: readonly number[],
  field: 'result' | 'audit',
  tail: Buffer,
): Generator<Buffer> {
  let left = results.bytesOf(positions, field) + tail.length
  let frame = NOTHING
  let at = 0
  for (let i = 0; i <= positions.length; i++) {
    const position = positions[i]
    const bytes = position === undefined ? tail.length : results.fieldBytes(position, field)
    for (let done = 0; done < bytes; ) {
      if (at === frame.length) {
        if (at > 0) yield frame
        frame = largeBuffer(Math.min(left, FRAME_BYTES))
        left -= frame.length
        at = 0
      }
      const copied =
        position === undefined
          ? tail.copy(frame, at, done)
          : results.copyField(position, field, done, frame, at)
      done += copied
      at += copied
    }
  }
  if (at > 0) yield frame
}

const NOTHING: Buffer = Buffer.alloc(0)
