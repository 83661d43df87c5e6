// Reads where the two stores are: `sqlite` or a PostgreSQL URL, `disk` or the URL of a bucket.
import { Type } from 'typebox'
import { checked, type Shape, scalar } from './shape.ts'
import { present } from './sources.ts'

/** A path of null: the usual place in data_dir. */
type DatabaseAddress = { kind: 'sqlite'; path: string | null } | { kind: 'postgres'; url: string }

export interface S3Config {
  kind: 's3'
  bucket: string
  /** Without slashes at its ends; '' when the whole bucket is ours. */
  prefix: string
  /** Base URL of an S3-compatible server; null: AWS itself. */
  endpoint: string | null
  region: string
  /** `endpoint/bucket/key` rather than `bucket.endpoint/key`. */
  path_style: boolean
  access_key_id: string
  secret_access_key: string
  session_token: string | null
}

/** A bucket without its credentials; without its region where the URL names none. */
export interface S3Address
  extends Omit<S3Config, 'region' | 'access_key_id' | 'secret_access_key' | 'session_token'> {
  region: string | null
}

type BlobsAddress = { kind: 'disk'; root: string | null } | S3Address

export const DATABASE: Shape<DatabaseAddress> = scalar(
  Type.String({ pattern: '^(sqlite$|sqlite:.|postgres(ql)?://.)' }),
  'sqlite, sqlite:PATH or postgres://user@host/database',
  ['string'],
  (found) => {
    if (found === 'sqlite') return { kind: 'sqlite', path: null }
    const path = after(found, 'sqlite:')
    if (path !== null) return { kind: 'sqlite', path }
    return /^postgres(ql)?:\/\/./.test(found) && URL.canParse(found)
      ? { kind: 'postgres', url: found }
      : undefined
  },
)

export const BLOBS: Shape<BlobsAddress> = checked(
  scalar<BlobsAddress>(
    Type.String({ pattern: '^(disk$|disk:.|s3://.)' }),
    'disk, disk:PATH or s3://bucket/prefix?endpoint=URL&region=NAME&path_style=true',
    ['string'],
    (found) => {
      if (found === 'disk') return { kind: 'disk', root: null }
      const root = after(found, 'disk:')
      return root === null ? bucket(found) : { kind: 'disk', root }
    },
  ),
  (blobs, problem, env) => {
    if (blobs.kind === 'disk') return
    for (const name of ['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'])
      if (present(env[name]) === undefined)
        problem([], `the bucket ${blobs.bucket} needs the variable ${name}`)
  },
)

function bucket(found: string): S3Address | undefined {
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
  // A blob's key consists of segments of these characters, and the prefix is put in front of it.
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

/** What follows `scheme`, or null when `found` begins otherwise or with `scheme//`, which is no path. */
function after(found: string, scheme: string): string | null {
  if (!found.startsWith(scheme) || found.startsWith(`${scheme}//`)) return null
  const rest = found.slice(scheme.length)
  return rest === '' ? null : rest
}
