// Stores an upload as a sealed blob while it arrives. A large file is validated at the same time, and if it is valid,
// its index is stored too.
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import type { StreamingUpload, StreamingValidation } from './streaming-validation.ts'
import type { ValidFile } from './streaming-validator.ts'

export interface StoredUpload {
  content: SealedBlob
  /** Of a file that streaming validation found valid; other files are validated afterwards. */
  index: { blob: SealedBlob; line_count: number } | null
}

/** Throws what `pieces` and the store throw; then nothing is stored. */
export async function storeUpload(
  { sealed, streamingValidation }: { sealed: SealedBlobs; streamingValidation?: StreamingValidation },
  pieces: AsyncIterable<Buffer>,
  { id, project_id, form_bytes }: { id: string; project_id: string; form_bytes: number },
): Promise<StoredUpload> {
  const contentKey = `files/${id}/upload`
  const validation = streamingValidation?.begin(project_id, form_bytes) ?? null
  if (validation === null) {
    const content = await sealed.put(
      project_id,
      contentKey,
      passOn(pieces, null, () => {}),
    )
    return { content, index: null }
  }

  const read = Promise.withResolvers<void>()
  const storeIndex = async (found: ValidFile | null): Promise<StoredUpload['index']> => {
    if (found === null) return null
    const json = Buffer.from(found.index_json)
    return { blob: await sealed.put(project_id, `files/${id}/index`, [json]), line_count: found.line_count }
  }
  const index = read.promise
    .then(() => validation.verdict())
    .then(storeIndex)
    // Without an index the file is validated afterwards.
    .catch(() => null)
  try {
    const content = await sealed.put(project_id, contentKey, passOn(pieces, validation, read.resolve))
    return { content, index: await index }
  } catch (error) {
    validation.leave()
    read.resolve()
    const stored = await index
    if (stored) await sealed.delete(stored.blob.key)
    throw error
  }
}

/** Passes the pieces on and frees each: the store copies a piece before it requests the next one. */
async function* passOn(
  pieces: AsyncIterable<Buffer>,
  validation: StreamingUpload | null,
  ended: () => void,
): AsyncGenerator<Buffer, void, undefined> {
  for await (const piece of pieces) {
    const wait = validation?.take(piece)
    if (wait) await wait
    yield piece
    freeBuffer(piece)
  }
  ended()
}

/**
 * Frees the memory of a block that is no longer used, if the block shares it with no other. The garbage collector
 * learns of such memory late: at hundreds of megabytes a second, tens of megabytes would pile up.
 */
export function freeBuffer({ buffer, byteLength }: Uint8Array): void {
  if (buffer instanceof ArrayBuffer && byteLength === buffer.byteLength) buffer.transfer(0)
}
