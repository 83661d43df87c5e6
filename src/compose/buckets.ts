// Opens the buckets that the configuration lets projects use, as they are needed. One that is configured no more is
// not used any more.
import type { Objects, OpenBucket } from '../blobs/objects.ts'
import type { BucketConfig } from '../config/config.ts'
import { placeOf } from '../domain/bucket-url.ts'

/** `buckets`: as configured just now. */
export function bucketOpener(buckets: () => readonly BucketConfig[]): OpenBucket {
  const opened = new WeakMap<BucketConfig, Objects>()
  return async (project, use, url) => {
    const { bucket, key } = placeOf(buckets(), project, use, url)
    const { S3Objects } = await import('../blobs/s3/s3-objects.ts')
    const objects = opened.get(bucket) ?? new S3Objects(bucket)
    opened.set(bucket, objects)
    return { objects, key }
  }
}
