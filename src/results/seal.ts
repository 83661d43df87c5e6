// Sealing a chunk: its results in input order become one output blob, one error blob and one audit blob. A
// blob that would be empty is not written.
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import type { ChunkSeal } from '../store/chunks.ts'
import type { Written } from './journal.ts'

export interface SealedChunk {
  seal: ChunkSeal
  blobs: SealedBlob[]
  output_lines: number
  error_lines: number
}

/**
 * Writes the blobs of a chunk under names of this attempt. `written` holds every line of the chunk once, in
 * any order.
 */
export async function sealChunk(
  sealed: SealedBlobs,
  chunk: { project_id: string; batch_id: string; idx: number },
  attempt: string,
  written: readonly Written[],
): Promise<SealedChunk> {
  const inOrder = written.toSorted((a, b) => a.line - b.line)
  const key = (part: string): string =>
    `batches/${chunk.batch_id}/${String(chunk.idx).padStart(7, '0')}-${attempt}-${part}`
  const write = async (part: string, rows: readonly Buffer[]): Promise<SealedBlob | null> => {
    if (rows.length === 0) return null
    return await sealed.put(chunk.project_id, key(part), [Buffer.concat(rows)])
  }
  const outputs = inOrder.filter((line) => line.part === 'output').map((line) => line.result)
  const errors = inOrder.filter((line) => line.part === 'error').map((line) => line.result)
  const [output, error, audit] = await Promise.all([
    write('output', outputs),
    write('error', errors),
    write(
      'audit',
      inOrder.map((line) => line.audit),
    ),
  ])
  if (audit === null) throw new Error('a chunk without lines cannot be sealed')
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
