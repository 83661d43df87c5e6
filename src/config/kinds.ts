// What a single value may be: one reader for the text of a variable or flag and for a scalar of the file.
import { durationMs, durationText } from '../domain/duration.ts'
import { picosPerToken } from '../domain/money.ts'
import { sizeBytes, sizeText } from './size.ts'

export interface Kind<T> {
  /** Completes the sentence "expected …". */
  expected: string
  /** The types of a scalar in the file; the text of a variable is always accepted. */
  scalars: readonly ('string' | 'number' | 'boolean')[]
  /** Undefined when `text` is no such value. */
  read(text: string): T | undefined
}

/** Text that `pattern` describes whole. */
export function text(pattern: RegExp, expected: string): Kind<string> {
  return { expected, scalars: ['string'], read: (found) => (pattern.test(found) ? found : undefined) }
}

export const anyText: Kind<string> = text(/^[^\n\r]*\S[^\n\r]*$/, 'text on one line')

export function oneOf<T extends string>(values: readonly T[]): Kind<T> {
  return {
    expected: `one of ${values.join(', ')}`,
    scalars: ['string'],
    read: (found) => values.find((value) => value === found),
  }
}

export const flag: Kind<boolean> = {
  expected: 'true or false',
  scalars: ['boolean'],
  read: (found) => (found === 'true' ? true : found === 'false' ? false : undefined),
}

export function integer(min: number, max = Number.MAX_SAFE_INTEGER): Kind<number> {
  return {
    expected:
      max === Number.MAX_SAFE_INTEGER
        ? `a whole number, ${min} or more`
        : `a whole number from ${min} to ${max}`,
    scalars: ['number'],
    read: (found) => {
      const value = /^\d+$/.test(found) ? Number(found) : Number.NaN
      return Number.isSafeInteger(value) && value >= min && value <= max ? value : undefined
    },
  }
}

/** A number from 0 to 1. */
export const fraction: Kind<number> = {
  expected: 'a number from 0 to 1',
  scalars: ['number'],
  read: (found) => {
    const value = decimal(found)
    return value !== undefined && value <= 1 ? value : undefined
  },
}

/** Milliseconds as a bare number, fractions allowed. */
export const milliseconds: Kind<number> = {
  expected: 'milliseconds as a number, 0 or more',
  scalars: ['number'],
  read: decimal,
}

/** USD per million tokens, read as pico-dollars per token. */
export const pricePicos: Kind<number> = {
  expected: 'USD per million tokens, 0 or more, with at most six decimals',
  scalars: ['number'],
  read: (found) => {
    const usd = decimal(found)
    if (usd === undefined || usd > 1e6) return undefined
    const picos = picosPerToken(usd)
    return Math.abs(picos - usd * 1e6) < 1e-3 ? picos : undefined
  },
}

/** Read as milliseconds. */
export function duration(min_ms: number): Kind<number> {
  const examples = 'a duration such as 250ms, 5s, 10m, 24h or 90d'
  return {
    expected: min_ms === 0 ? examples : `${examples}, at least ${durationText(min_ms)}`,
    scalars: ['string'],
    read: (found) => {
      const ms = durationMs(found)
      return ms !== null && ms >= min_ms ? ms : undefined
    },
  }
}

/** Read as bytes. */
export function size(min: number): Kind<number> {
  return {
    expected: `a size such as 8MiB or 10GiB, at least ${sizeText(min)}`,
    scalars: ['string', 'number'],
    read: (found) => {
      const bytes = sizeBytes(found)
      return bytes !== null && bytes >= min ? bytes : undefined
    },
  }
}

function decimal(found: string): number | undefined {
  return /^\d+(\.\d+)?(e[+-]?\d+)?$/.test(found) && Number.isFinite(Number(found)) ? Number(found) : undefined
}
