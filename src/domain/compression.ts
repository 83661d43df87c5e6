// Recognises compressed content by its first bytes: no JSON text begins with any of these.

const SIGNATURES: readonly (readonly [name: string, bytes: readonly number[]])[] = [
  ['gzip', [0x1f, 0x8b]],
  ['zstd', [0x28, 0xb5, 0x2f, 0xfd]],
  ['zip', [0x50, 0x4b, 0x03, 0x04]],
  ['bzip2', [0x42, 0x5a, 0x68]],
  ['xz', [0xfd, 0x37, 0x7a, 0x58, 0x5a]],
]

/** The number of bytes that `compressionOf` needs. */
export const COMPRESSION_BYTES = 5

/** The compression format of content that begins with `bytes`; null for other content. */
export function compressionOf(bytes: Uint8Array): string | null {
  const found = SIGNATURES.find(([, signature]) => signature.every((byte, i) => bytes[i] === byte))
  return found?.[0] ?? null
}
