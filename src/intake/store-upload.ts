// An upload's content becomes a sealed blob as it arrives. A big file is read along, and where all of it is in
// order, its index is stored while the content's last bytes are on their way to the disk.
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import type { StreamingUpload, StreamingValidation } from './streaming-validation.ts'
import type { ValidFile } from './streaming-validator.ts'

export interface StoredUpload {
  content: SealedBlob
  /** Of a file that has been read and is in order; the others are validated afterwards. */
  index: { blob: SealedBlob; line_count: number } | null
}

/** Leaves nothing behind when it throws, which it does as `pieces` and the store do. */
export async function storeUpload(
  { sealed, streamingValidation }: { sealed: SealedBlobs; streamingValidation?: StreamingValidation },
  pieces: AsyncIterable<Buffer>,
  { id, project_id, form_bytes }: { id: string; project_id: string; form_bytes: number },
): Promise<StoredUpload> {
  const content_key = `files/${id}/upload`
  const along = streamingValidation?.begin(form_bytes) ?? null
  if (along === null) {
    const content = await sealed.put(
      project_id,
      content_key,
      handOn(pieces, null, () => {}),
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
    .then(() => along.verdict())
    .then(storeIndex)
    // It was a short cut: without it the file is validated like any other.
    .catch(() => null)
  try {
    const content = await sealed.put(project_id, content_key, handOn(pieces, along, read.resolve))
    return { content, index: await index }
  } catch (error) {
    along.leave()
    read.resolve()
    const stored = await index
    if (stored) await sealed.delete(stored.blob.key)
    throw error
  }
}

/** The pieces, which belong to nobody else: the store copies each before it asks for the next. */
async function* handOn(
  pieces: AsyncIterable<Buffer>,
  along: StreamingUpload | null,
  ended: () => void,
): AsyncGenerator<Buffer, void, undefined> {
  for await (const piece of pieces) {
    const wait = along?.take(piece)
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
