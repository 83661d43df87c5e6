// URLs of objects in buckets, as callers give them: s3://bucket/path. The configuration (`buckets`) allows prefixes to
// projects. A path is taken literally: nothing in it is decoded, and a path that a server or a proxy could read as
// another path is rejected.
import { ApiError, invalidParam } from './errors.ts'

export const BUCKET_USES = ['read', 'write'] as const
export type BucketUse = (typeof BUCKET_USES)[number]

/** A prefix in a bucket that some projects may use. */
export interface AllowedPrefix {
  bucket: string
  /** The prefix without slashes at its ends; '' for the whole bucket. */
  prefix: string
  /** Names or IDs of the projects that may use the prefix. */
  projects: readonly string[]
  access: readonly BucketUse[]
}

interface Project {
  id: string
  name: string
}

/** The limit of a key's length in S3. */
const KEY_BYTES_MAX = 1024
const OBJECT_URL = /^s3:\/\/([\w.-]+)\/([^%?#\\\p{Cc}]*)$/u

/** The name of the request field with a URL to read from or write to. */
export function urlField(use: BucketUse): 'input_url' | 'output_url' {
  return use === 'read' ? 'input_url' : 'output_url'
}

/**
 * The allowed prefix that contains the URL, and its key in the bucket: of an object to read, or of a folder to write to
 * ('' or ending with a slash). Throws invalid_request and bucket_not_allowed.
 */
export function resolveBucketUrl<A extends AllowedPrefix>(
  allowed: readonly A[],
  project: Project,
  use: BucketUse,
  url: string,
): { bucket: A; key: string } {
  const param = urlField(use)
  const [, name = '', path = ''] = OBJECT_URL.exec(url) ?? []
  const key = use === 'read' || path === '' || path.endsWith('/') ? path : `${path}/`
  const segments = use === 'read' ? key.split('/') : key.split('/').slice(0, -1)
  if (name === '' || segments.some((one) => ['', '.', '..'].includes(one)) || isTooLong(key)) {
    const example = use === 'read' ? 's3://bucket/path/input.jsonl' : 's3://bucket/path/'
    const message = `\`${param}\` must be such as "${example}", without parameters, "%", and empty, "." or ".." segments.`
    throw invalidParam(param, message)
  }
  const own = allowed.filter(
    ({ projects, access }) =>
      access.includes(use) && (projects.includes(project.name) || projects.includes(project.id)),
  )
  const found = own
    .filter(({ bucket, prefix }) => bucket === name && (prefix === '' || key.startsWith(`${prefix}/`)))
    .sort((a, b) => b.prefix.length - a.prefix.length)[0]
  if (found) return { bucket: found, key }
  const prefixes = own.map(({ bucket, prefix }) => `s3://${bucket}/${prefix === '' ? '' : `${prefix}/`}`)
  const may = prefixes.length === 0 ? 'no bucket' : prefixes.join(' and ')
  throw new ApiError('bucket_not_allowed', `This project may ${use} ${may}, not ${url}.`, { param })
}

function isTooLong(key: string): boolean {
  return Buffer.byteLength(key) > KEY_BYTES_MAX
}
