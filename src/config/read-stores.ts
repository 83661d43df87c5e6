// Where the two stores are: `sqlite` or a PostgreSQL URL, `disk` or the URL of a bucket.
import { resolve } from 'node:path'
import type { DatabaseConfig, S3Config } from './config.ts'
import type { Kind } from './kinds.ts'

/** A bucket whose credentials, and whose region if the URL names none, are still to be found. */
export interface S3Settings
  extends Omit<S3Config, 'region' | 'access_key_id' | 'secret_access_key' | 'session_token'> {
  region: string | null
}

export type BlobsSettings = { kind: 'disk'; root: string } | S3Settings

export function databaseKind(data_dir: string, cwd: string): Kind<DatabaseConfig> {
  return {
    expected: 'sqlite, sqlite:PATH or postgres://user@host/database',
    scalars: ['string'],
    read: (found) => {
      if (found === 'sqlite') return { kind: 'sqlite', path: resolve(data_dir, 'offpeak.db') }
      const path = after(found, 'sqlite:')
      if (path !== null) return { kind: 'sqlite', path: resolve(cwd, path) }
      return /^postgres(ql)?:\/\/./.test(found) && URL.canParse(found)
        ? { kind: 'postgres', url: found }
        : undefined
    },
  }
}

export function blobsKind(data_dir: string, cwd: string): Kind<BlobsSettings> {
  return {
    expected: 'disk, disk:PATH or s3://bucket/prefix?endpoint=URL&region=NAME&path_style=true',
    scalars: ['string'],
    read: (found) => {
      if (found === 'disk') return { kind: 'disk', root: resolve(data_dir, 'blobs') }
      const path = after(found, 'disk:')
      if (path !== null) return { kind: 'disk', root: resolve(cwd, path) }
      return bucket(found)
    },
  }
}

function bucket(found: string): S3Settings | undefined {
  if (!found.startsWith('s3://') || !URL.canParse(found)) return undefined
  const url = new URL(found)
  const parameters = new Map(url.searchParams)
  const endpoint = parameters.get('endpoint') ?? null
  const path_style = parameters.get('path_style') ?? String(endpoint !== null)
  const known = ['endpoint', 'region', 'path_style']
  if ([...parameters.keys()].some((name) => !known.includes(name))) return undefined
  if (url.hostname === '' || url.username !== '' || url.port !== '') return undefined
  if (path_style !== 'true' && path_style !== 'false') return undefined
  if (endpoint !== null && !(/^https?:\/\//.test(endpoint) && URL.canParse(endpoint))) return undefined
  const prefix = url.pathname.replace(/^\/+|\/+$/g, '')
  // A blob's key is segments of these characters; a prefix has to fit in front of it.
  if (!/^([A-Za-z0-9._-]+(\/[A-Za-z0-9._-]+)*)?$/.test(prefix)) return undefined
  return {
    kind: 's3',
    bucket: url.hostname,
    prefix,
    endpoint: endpoint?.replace(/\/+$/, '') ?? null,
    region: parameters.get('region') ?? null,
    path_style: path_style === 'true',
  }
}

/** What follows `scheme`, or null when `found` is of another; `scheme://` is no way to write a path here. */
function after(found: string, scheme: string): string | null {
  if (!found.startsWith(scheme) || found.startsWith(`${scheme}//`)) return null
  const rest = found.slice(scheme.length)
  return rest === '' ? null : rest
}
