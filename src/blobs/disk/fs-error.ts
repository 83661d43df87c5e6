import { BlobStoreFailed } from '../blobs.ts'

/** The error code of the operating system ("ENOENT"), or null when `error` is no failed system call. */
export function errnoOf(error: unknown): string | null {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : null
}

/** `call`'s result; its failure as BlobStoreFailed, `doing` saying what was tried ("writing blob a/b"). */
export async function attempt<T>(doing: string, call: Promise<T>): Promise<T> {
  try {
    return await call
  } catch (cause) {
    throw new BlobStoreFailed(doing, cause)
  }
}
