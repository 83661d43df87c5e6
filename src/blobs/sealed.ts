// Placeholder of the port until the implementation lands in this same file.
import type { ByteRange } from './blobs.ts'

/** What SQL keeps of a sealed blob: enough to find, open and measure it. */
export interface SealedBlob {
  key: string
  /** The blob's own data key, wrapped by the master key with (project, key) as associated data; base64url. */
  wrapped_key: string
  /** Bytes of plaintext. */
  bytes: number
}

export interface SealedBlobs {
  put(
    project_id: string,
    key: string,
    source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  ): Promise<SealedBlob>
  read(project_id: string, blob: SealedBlob, range?: ByteRange): AsyncIterable<Buffer>
  delete(key: string): Promise<void>
}
