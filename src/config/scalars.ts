// Declares the kinds of single values: durations, sizes, prices, choices, opening hours, addresses of stores.
import { Type } from 'typebox'
import { keyProblem } from '../domain/credentials.ts'
import { DURATION_UNITS, durationMs, durationText } from '../domain/days.ts'
import { type EndpointPath, isEndpointPath } from '../domain/endpoint.ts'
import { type HoursWindow, isTimeZone } from '../domain/hours.ts'
import { picosPerToken } from '../domain/money.ts'
import { byDefault, checked, optional, RULES, type Shape, scalar, section } from './shape.ts'
import { present } from './sources.ts'

/** Declares a text that matches `pattern`, converted by `read`, which returns undefined for an invalid text. */
export function text(
  pattern: RegExp,
  expected: string,
  read: (found: string) => string | undefined = (found) => found,
): Shape<string> {
  const schema = Type.String({ pattern: pattern.source })
  return scalar(schema, expected, ['string'], (found) => (pattern.test(found) ? read(found) : undefined))
}

export const anyText: Shape<string> = text(/^[^\n\r]*\S[^\n\r]*$/, 'text on one line')

/** An address to listen on; IPv6 as in a URL or without brackets. */
export const HOST: Shape<string> = text(
  /^([^\s/[\]]+|\[[\da-fA-F:.]+\])$/,
  'an address to listen on such as 127.0.0.1, 0.0.0.0, :: or a name of this machine',
  (found) => found.replace(/^\[(.*)\]$/, '$1'),
)

export function oneOf<T extends string>(values: readonly T[]): Shape<T> {
  return scalar(Type.Enum([...values]), `one of ${values.join(', ')}`, ['string'], (found) =>
    values.find((value) => value === found),
  )
}

export const boolean: Shape<boolean> = scalar(Type.Boolean(), 'true or false', ['boolean'], (found) =>
  found === 'true' ? true : found === 'false' ? false : undefined,
)

/** The path of an endpoint, with or without `/v1/`. */
export const endpointPath: Shape<EndpointPath> = scalar(
  Type.String({ pattern: '^[\\w./-]+$' }),
  'the path of an endpoint such as /v1/embeddings',
  ['string'],
  (found) => {
    const path = `/v1/${found.replace(/^\/?(v1\/)?/, '')}`
    return isEndpointPath(path) ? path : undefined
  },
)

export function integer(minimum: number, maximum = Number.MAX_SAFE_INTEGER): Shape<number> {
  const unbounded = maximum === Number.MAX_SAFE_INTEGER
  return scalar(
    Type.Integer(unbounded ? { minimum } : { minimum, maximum }),
    unbounded ? `a whole number, ${minimum} or more` : `a whole number from ${minimum} to ${maximum}`,
    ['number'],
    (found) => {
      const value = /^\d+$/.test(found) ? Number(found) : Number.NaN
      return Number.isSafeInteger(value) && value >= minimum && value <= maximum ? value : undefined
    },
  )
}

export const fraction: Shape<number> = scalar(
  Type.Number({ minimum: 0, maximum: 1 }),
  'a number from 0 to 1',
  ['number'],
  (found) => {
    const value = decimal(found)
    return value !== undefined && value <= 1 ? value : undefined
  },
)

/** Milliseconds as a bare number, fractions allowed. */
export const milliseconds: Shape<number> = scalar(
  Type.Number({ minimum: 0 }),
  'milliseconds as a number, 0 or more',
  ['number'],
  decimal,
)

/** A price in USD per million tokens, converted to pico-dollars per token. */
export const pricePicos: Shape<number> = scalar(
  Type.Number({ minimum: 0, maximum: 1e6 }),
  'USD per million tokens, 0 or more, with at most six decimals',
  ['number'],
  (found) => {
    const usd = decimal(found)
    if (usd === undefined || usd > 1e6) return undefined
    const picos = picosPerToken(usd)
    return Math.abs(picos - usd * 1e6) < 1e-3 ? picos : undefined
  },
)

const DURATION = Type.String({ pattern: `^\\d+(${DURATION_UNITS})$` })

/** Declares a duration, converted to milliseconds. */
export function duration(minMs: number): Shape<number> {
  const examples = 'a duration such as 250ms, 5s, 10m, 24h or 90d'
  const expected = minMs === 0 ? examples : `${examples}, at least ${durationText(minMs)}`
  return scalar(DURATION, expected, ['string'], (found) => {
    const ms = durationMs(found)
    return ms !== null && ms >= minMs ? ms : undefined
  })
}

/** A completion window in whole seconds, like `expires_at` and `created`. */
export const completionWindow: Shape<{ text: string; ms: number }> = scalar(
  DURATION,
  'a duration of whole seconds such as 4h or 24h, at least 1s',
  ['string'],
  (found) => {
    const ms = durationMs(found)
    return ms !== null && ms > 0 && ms % 1000 === 0 ? { text: found, ms } : undefined
  },
)

const SIZE = Type.Union([Type.Integer({ minimum: 0 }), Type.String({ pattern: '^\\d+ ?(B|[KMGT]i?B)?$' })])

/** Declares a size, converted to bytes. */
export function size(min: number): Shape<number> {
  return scalar(
    SIZE,
    `a size such as 8MiB or 10GiB, at least ${sizeText(min)}`,
    ['string', 'number'],
    (found) => {
      const bytes = sizeBytes(found)
      return bytes !== null && bytes >= min ? bytes : undefined
    },
  )
}

/** Declares a value of the shape `of`, or one of `words` in its place. */
export function orWord<T, W>(
  of: Shape<T>,
  words: Readonly<Record<string, W>>,
  expected: string,
): Shape<T | W> {
  const { default: _, errorMessage: __, ...schema } = { errorMessage: '', ...of }
  const names = Object.keys(words)
  const literals = names.map((word) => (word === 'false' ? false : word))
  return scalar<T | W>(
    { anyOf: [schema, { enum: literals }] },
    expected,
    ['number', 'string', ...(names.includes('false') ? (['boolean'] as const) : [])],
    (found) => (Object.hasOwn(words, found) ? words[found] : (of[RULES].parse?.(found) as T | undefined)),
  )
}

function decimal(found: string): number | undefined {
  return /^\d+(\.\d+)?(e[+-]?\d+)?$/.test(found) && Number.isFinite(Number(found)) ? Number(found) : undefined
}

// Sizes as people write them: `8MiB` is 8 × 1024², `8MB` is 8 × 1000², a bare number is bytes.

const UNIT_BYTES = {
  '': 1,
  B: 1,
  KB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
}

/** Parses a size into bytes; null when `text` is no size. */
export function sizeBytes(text: string): number | null {
  const [, digits, given] = /^(\d+) ?([A-Za-z]*)$/.exec(text) ?? []
  const [, factor = Number.NaN] = Object.entries(UNIT_BYTES).find(([unit]) => unit === given) ?? []
  const bytes = Number(digits) * factor
  return Number.isSafeInteger(bytes) ? bytes : null
}

/** The shortest exact text of a size, in powers of 1024: 8388608 is `8MiB`. */
export function sizeText(bytes: number): string {
  for (const unit of ['TiB', 'GiB', 'MiB', 'KiB'] as const) {
    if (bytes > 0 && bytes % UNIT_BYTES[unit] === 0) return `${bytes / UNIT_BYTES[unit]}${unit}`
  }
  return `${bytes}B`
}

// The form of opening hours: days of the week, times of the day, a time zone.

const DAYS = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun']
const DAY = `(${DAYS.join('|')})`
const DAYS_EXPECTED = 'days such as mon-fri, sat or "mon,wed", or daily'
const DAYS_SCHEMA = text(new RegExp(`^(daily|${DAY}([-,] ?${DAY})*)$`), DAYS_EXPECTED)
const TIME = text(/^([01]\d|2[0-3]):[0-5]\d$|^24:00$/, 'a time of the day in quotes, "00:00" to "24:00"')

const TIMEZONE: Shape<string> = checked(
  text(/^[A-Za-z][A-Za-z0-9_+/-]*$/, 'the name of a time zone such as Europe/Berlin'),
  (name, problem) => {
    if (!isTimeZone(name)) problem([], `${name} is no time zone; expected a name such as Europe/Berlin`)
  },
)

const WINDOW = section({
  days: byDefault('daily', scalar(DAYS_SCHEMA, DAYS_EXPECTED, ['string'], daysOf)),
  from: byDefault('00:00', scalar(TIME, 'a time such as "20:00"', ['string'], minutesOf)),
  to: byDefault('24:00', scalar(TIME, 'a time such as "07:00"', ['string'], minutesOf)),
  timezone: byDefault('UTC', TIMEZONE),
  concurrency_max: optional(integer(0)),
})

export const HOURS_WINDOW: Shape<HoursWindow> = checked(WINDOW, ({ from }, problem) => {
  if (from === 1440) problem(['from'], 'expected a time before "24:00"')
})

/** The ISO numbers of named days, 1 for Monday; undefined for a text that names none. */
function daysOf(found: string): number[] | undefined {
  if (found === 'daily') return [1, 2, 3, 4, 5, 6, 7]
  const days = new Set<number>()
  for (const part of found.split(',')) {
    const [first = -1, last = first, ...rest] = part.split('-').map((day) => DAYS.indexOf(day.trim()))
    if (first === -1 || last === -1 || rest.length > 0) return undefined
    for (let day = first; ; day = (day + 1) % 7) {
      days.add(day + 1)
      if (day === last) break
    }
  }
  return [...days].sort()
}

function minutesOf(found: string): number | undefined {
  const match = /^(\d\d):(\d\d)$/.exec(found)
  if (!match) return undefined
  const minutes = Number(match[1]) * 60 + Number(match[2])
  return minutes <= 1440 && Number(match[2]) < 60 ? minutes : undefined
}

// Reads where the two stores are: `sqlite` or a PostgreSQL URL, `disk` or the URL of a bucket.

/** The address of a database: a path on this machine (null: in data_dir), or a URL that machines may share. */
export type DatabaseAddress = { kind: 'sqlite'; path: string | null } | { kind: 'postgres'; url: string }

export interface S3Config {
  kind: 's3'
  bucket: string
  /** The prefix of keys, without slashes at its ends; '' for the whole bucket. */
  prefix: string
  /** The base URL of an S3-compatible server; null: AWS itself. */
  endpoint: string | null
  region: string
  /** Whether URLs are `endpoint/bucket/key` rather than `bucket.endpoint/key`. */
  path_style: boolean
  /** The access key; null: the credentials are the environment's identity (the default chain of AWS). */
  access_key_id: string | null
  secret_access_key: string | null
  session_token: string | null
}

/** The address of a bucket, without credentials; without a region where the URL names none. */
export interface S3Address
  extends Omit<S3Config, 'region' | 'access_key_id' | 'secret_access_key' | 'session_token'> {
  region: string | null
}

type BlobsAddress = { kind: 'disk'; root: string | null } | S3Address

/** The form of an address by the kind of its database. */
const DATABASE_FORMS: Record<DatabaseAddress['kind'], string> = {
  sqlite: '^sqlite(:(?!//).|$)',
  postgres: '^postgres(ql)?://.',
}
export const DATABASE_KINDS = Object.keys(DATABASE_FORMS) as DatabaseAddress['kind'][]

export const DATABASE: Shape<DatabaseAddress> = checked(
  scalar<DatabaseAddress>(
    Type.String({ pattern: Object.values(DATABASE_FORMS).join('|') }),
    'sqlite, sqlite:PATH or postgres://user@host/database',
    ['string'],
    (found) => {
      const kind = DATABASE_KINDS.find((name) => new RegExp(DATABASE_FORMS[name]).test(found))
      if (kind === 'sqlite') return { kind, path: after(found, 'sqlite:') }
      return kind && { kind, url: found }
    },
  ),
  (database, problem) => {
    if ('url' in database && !isDatabaseUrl(database.url))
      problem(
        [],
        `is not a URL that can be read; expected ${database.kind}://user:password@host:port/database, with # @ % / and ? of a password as %23 %40 %25 %2F and %3F`,
      )
  },
)

/** Whether a text is a URL in which no character of the password can be read as another part. */
function isDatabaseUrl(text: string): boolean {
  if (!URL.canParse(text)) return false
  const { hash, pathname, searchParams, username, password } = new URL(text)
  const [authority = ''] = text.slice(text.indexOf('://') + 3).split(/[/?#]/, 1)
  const isAmbiguous = pathname.includes('@') || [...searchParams.keys()].some((name) => name.includes('@'))
  try {
    decodeURIComponent(username + password)
  } catch {
    return false
  }
  return hash === '' && !isAmbiguous && authority.split('@').length <= 2
}

const BUCKET_EXPECTED = 's3://bucket/prefix?endpoint=URL&region=NAME&path_style=true'

export const BLOBS: Shape<BlobsAddress> = checked(
  scalar<BlobsAddress>(
    Type.String({ pattern: '^(disk$|disk:.|s3://.)' }),
    `disk, disk:PATH or ${BUCKET_EXPECTED}`,
    ['string'],
    (found) => {
      if (found === 'disk') return { kind: 'disk', root: null }
      const root = after(found, 'disk:')
      return root === null ? bucket(found) : { kind: 'disk', root }
    },
  ),
  (blobs, problem, env) => {
    if (blobs.kind === 'disk') return
    for (const name of isWithoutKey(env)
      ? []
      : ['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_SESSION_TOKEN']) {
      const value = present(env[name])
      // The secret signs requests and is in no header.
      const why = value === undefined || name === 'AWS_SECRET_ACCESS_KEY' ? null : keyProblem(value)
      if (why !== null) problem([], `the variable ${name} ${why}`)
      if (value === undefined && name !== 'AWS_SESSION_TOKEN')
        problem([], `the bucket ${blobs.bucket} needs the variable ${name}`)
    }
  },
)

/** Whether no variable of AWS has a part of a key. */
export function isWithoutKey(env: NodeJS.ProcessEnv): boolean {
  return present(env.AWS_ACCESS_KEY_ID) === undefined && present(env.AWS_SECRET_ACCESS_KEY) === undefined
}

export const BUCKET: Shape<S3Address> = scalar(
  Type.String({ pattern: '^s3://.' }),
  BUCKET_EXPECTED,
  ['string'],
  bucket,
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
  // The prefix comes before a blob's key, whose segments have these characters.
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

/** The text after `scheme`; null when `found` begins otherwise, or with `scheme//`, which is no path. */
function after(found: string, scheme: string): string | null {
  if (!found.startsWith(scheme) || found.startsWith(`${scheme}//`)) return null
  const rest = found.slice(scheme.length)
  return rest === '' ? null : rest
}
