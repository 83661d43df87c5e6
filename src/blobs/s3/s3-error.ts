// What a bucket says went wrong, in the words of the port.
import { S3ServiceException } from '@aws-sdk/client-s3'
import { BlobStoreFailed } from '../blobs.ts'

/** The request was answered with one of these codes. A HEAD has no body: its 404 is called NotFound. */
export function hasCode(error: unknown, ...codes: readonly string[]): boolean {
  return error instanceof S3ServiceException && codes.includes(error.name)
}

export function isMissing(error: unknown): boolean {
  return hasCode(error, 'NoSuchKey', 'NotFound')
}

/** Fails as the port says. */
export async function attempt<T>(doing: string, call: Promise<T>): Promise<T> {
  try {
    return await call
  } catch (cause) {
    throw new BlobStoreFailed(doing, cause)
  }
}
