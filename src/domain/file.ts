// The statuses of a file: an upload is pending until its validation ends; result files are created as processed.

export const FILE_STATUSES = ['pending', 'processed', 'error'] as const
export type FileStatus = (typeof FILE_STATUSES)[number]

export const FILE_TRANSITIONS: Record<FileStatus, readonly FileStatus[]> = {
  pending: ['processed', 'error'],
  processed: [],
  error: [],
}

export const FILE_PURPOSES = ['batch', 'batch_output', 'table'] as const
export type FilePurpose = (typeof FILE_PURPOSES)[number]

/** Purposes of files at OpenAI that this service does not have. */
export const FOREIGN_PURPOSES = [
  'assistants',
  'assistants_output',
  'fine-tune',
  'fine-tune-results',
  'vision',
  'user_data',
  'evals',
] as const
export type ForeignPurpose = (typeof FOREIGN_PURPOSES)[number]

/** The purposes of uploads: the lines of a batch, or a table from which lines are made. */
export const UPLOAD_PURPOSES = ['batch', 'table'] as const satisfies readonly FilePurpose[]
export type UploadPurpose = (typeof UPLOAD_PURPOSES)[number]

// The statuses of an upload in parts.

export const UPLOAD_STATUSES = ['pending', 'completed', 'cancelled', 'expired'] as const
export type UploadStatus = (typeof UPLOAD_STATUSES)[number]

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
