// The kinds of single values: durations, sizes, prices, choices and the like.
import { Type } from 'typebox'
import { durationMs, durationText } from '../domain/duration.ts'
import { ENDPOINT_PATHS, type EndpointPath, endpointPathOf } from '../domain/endpoint.ts'
import { picosPerToken } from '../domain/money.ts'
import { RULES, type Shape, scalar } from './shape.ts'
import { sizeBytes, sizeText } from './size.ts'

/** Text that `pattern` describes whole. */
export function text(pattern: RegExp, expected: string): Shape<string> {
  const schema = Type.String({ pattern: pattern.source })
  return scalar(schema, expected, ['string'], (found) => (pattern.test(found) ? found : undefined))
}

export const anyText: Shape<string> = text(/^[^\n\r]*\S[^\n\r]*$/, 'text on one line')

export function oneOf<T extends string>(values: readonly T[]): Shape<T> {
  return scalar(Type.Enum([...values]), `one of ${values.join(', ')}`, ['string'], (found) =>
    values.find((value) => value === found),
  )
}

export const boolean: Shape<boolean> = scalar(Type.Boolean(), 'true or false', ['boolean'], (found) =>
  found === 'true' ? true : found === 'false' ? false : undefined,
)

/** With `/v1/` or without. */
export const endpointPath: Shape<EndpointPath> = scalar(
  Type.Enum(ENDPOINT_PATHS.flatMap((path) => [path, path.slice('/v1/'.length)])),
  `an endpoint: ${ENDPOINT_PATHS.join(', ')}`,
  ['string'],
  (found) => endpointPathOf(found) ?? undefined,
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

/** USD per million tokens, read as pico-dollars per token. */
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

const DURATION = Type.String({ pattern: '^\\d+(ms|s|m|h|d)$' })

/** Read as milliseconds. */
export function duration(minMs: number): Shape<number> {
  const examples = 'a duration such as 250ms, 5s, 10m, 24h or 90d'
  const expected = minMs === 0 ? examples : `${examples}, at least ${durationText(minMs)}`
  return scalar(DURATION, expected, ['string'], (found) => {
    const ms = durationMs(found)
    return ms !== null && ms >= minMs ? ms : undefined
  })
}

/** `expires_at` and `created` are whole seconds, so a completion window has to be. */
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

/** Read as bytes. */
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

/** `of`, or one of `words` in its place. */
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
