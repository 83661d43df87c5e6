// Seals a chunk: writes its results in input order into one output, one error and one audit blob; the audit blob ends
// with an index (line-index.ts). Results are streamed from journals. Empty blobs are not written.
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import type { ChunkSeal } from '../store/chunks.ts'
import { type FinishedLine, fieldOf } from './journal.ts'
import { encodeLineIndex } from './line-index.ts'
import { bytesIn, readSpans } from './read-spans.ts'

export interface SealedChunk {
  seal: ChunkSeal
  blobs: SealedBlob[]
  output_lines: number
  error_lines: number
}

type Source = Iterable<Buffer> | AsyncIterable<Buffer>

/**
 * Writes the blobs of a chunk under keys of this attempt. `finished` has every line of the chunk once, in any order.
 * Throws BlobMissing or BlobDamaged if a journal cannot be read.
 */
export async function sealChunk(
  sealed: SealedBlobs,
  chunk: { project_id: string; batch_id: string; idx: number },
  attempt: string,
  finished: readonly FinishedLine[],
): Promise<SealedChunk> {
  if (finished.length === 0) throw new Error('a chunk without lines cannot be sealed')
  const inOrder = finished.toSorted((a, b) => a.line - b.line)
  const index = encodeLineIndex(
    inOrder.map((line) => ({
      line: line.line,
      part: line.part,
      resultBytes: bytesIn(fieldOf(line, 'result')),
      auditBytes: bytesIn(fieldOf(line, 'audit')),
    })),
  )
  const put = async (name: string, source: Source): Promise<SealedBlob> => {
    const key = `batches/${chunk.batch_id}/${String(chunk.idx).padStart(7, '0')}-${attempt}-${name}`
    return await sealed.put(chunk.project_id, key, source)
  }
  const outputs = inOrder.filter((line) => line.part === 'output')
  const errors = inOrder.filter((line) => line.part === 'error')
  const [output, error, audit] = await Promise.all([
    outputs.length === 0 ? null : put('output', rows(sealed, outputs, 'result', [])),
    errors.length === 0 ? null : put('error', rows(sealed, errors, 'result', [])),
    put('audit', rows(sealed, inOrder, 'audit', [index])),
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

/** If everything is in memory, nothing is copied. */
function rows(
  sealed: SealedBlobs,
  lines: readonly FinishedLine[],
  field: 'result' | 'audit',
  tail: readonly Buffer[],
): Source {
  const all = [...lines.map((line) => fieldOf(line, field)), ...tail]
  return all.every(Buffer.isBuffer) ? all : readSpans(sealed, all)
}
