// Numbers, money, durations and times for people. Exact values belong into a title beside these.
import { currentLocale } from './i18n.ts'

const formats = new Map<string, Intl.NumberFormat>()

function numberFormat(options: Intl.NumberFormatOptions): Intl.NumberFormat {
  const name = currentLocale() + JSON.stringify(options)
  let format = formats.get(name)
  if (!format) {
    format = new Intl.NumberFormat(currentLocale(), options)
    formats.set(name, format)
  }
  return format
}

export function count(value: number): string {
  return numberFormat({}).format(value)
}

/** 12,400 becomes 12.4K. */
export function compact(value: number): string {
  return numberFormat({ notation: 'compact', maximumFractionDigits: 1 }).format(value)
}

/** Two decimals from a dollar on, three significant digits below: $0.00126. */
export function usd(value: number): string {
  const inCents = value === 0 || value >= 1 || Number.isInteger(Number((value * 100).toFixed(7)))
  const digits = inCents ? { maximumFractionDigits: 2 } : { maximumSignificantDigits: 3 }
  return numberFormat({
    style: 'currency',
    currency: 'USD',
    currencyDisplay: 'narrowSymbol',
    ...digits,
  }).format(value)
}

/** To the nano-dollar. */
export function usdExact(value: number): string {
  return `${numberFormat({ maximumFractionDigits: 9 }).format(value)} USD`
}

/** Never "100%" before all is done, and never "0%" once something is. */
export function percent(part: number, whole: number): string {
  if (whole === 0) return numberFormat({ style: 'percent' }).format(0)
  const share = part / whole
  const digits = (share > 0 && share < 0.01) || (share > 0.99 && share < 1) ? 1 : 0
  const rounded = Math.floor(share * 100 * 10 ** digits) / 10 ** digits / 100
  return numberFormat({ style: 'percent', maximumFractionDigits: digits }).format(
    share > 0 && rounded === 0 ? 0.001 : rounded,
  )
}

export function perSecond(value: number): string {
  return `${numberFormat({ maximumFractionDigits: value < 10 ? 1 : 0 }).format(value)}/s`
}

export function bytes(value: number): string {
  const units = ['byte', 'kilobyte', 'megabyte', 'gigabyte', 'terabyte']
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(value, 1)) / 3))
  return numberFormat({
    style: 'unit',
    unit: units[step],
    unitDisplay: step === 0 ? 'long' : 'short',
    maximumFractionDigits: step === 0 ? 0 : 1,
  }).format(value / 1000 ** step)
}

const UNITS = [
  ['day', 86_400],
  ['hour', 3_600],
  ['minute', 60],
  ['second', 1],
] as const

function unit(value: number, name: string, decimals = 0): string {
  const options = {
    style: 'unit',
    unit: name,
    unitDisplay: 'narrow',
    maximumFractionDigits: decimals,
  } as const
  return numberFormat(options).format(value)
}

/** The two largest units: `2h 5m`; below a minute decimals: `4.2s`; below a second `350ms`. */
export function duration(ms: number): string {
  if (ms < 1_000) return unit(Math.round(ms), 'millisecond')
  if (ms < 60_000) return unit(ms / 1000, 'second', ms < 10_000 ? 1 : 0)
  let rest = Math.round(ms / 1000)
  const parts: string[] = []
  for (const [name, seconds] of UNITS) {
    const whole = Math.floor(rest / seconds)
    rest -= whole * seconds
    if (whole > 0) parts.push(unit(whole, name))
    if (parts.length === 2 || (parts.length === 1 && whole === 0)) break
  }
  return parts.join(' ')
}

/** `3 minutes ago`, `in 2 hours`. */
export function relative(unixSeconds: number, nowMs: number): string {
  const seconds = unixSeconds - nowMs / 1000
  const [name, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? ['second', 1]
  const format = new Intl.RelativeTimeFormat(currentLocale(), { numeric: 'auto', style: 'long' })
  return format.format(Math.trunc(seconds / size), name)
}

/** In the reader's zone; the year only where it is another one. */
export function dateTime(unixSeconds: number, nowMs: number): string {
  const date = new Date(unixSeconds * 1000)
  const sameYear = date.getFullYear() === new Date(nowMs).getFullYear()
  const format = new Intl.DateTimeFormat(currentLocale(), {
    ...(sameYear ? {} : { year: 'numeric' }),
    month: 'short',
    day: 'numeric',
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
  })
  return format.format(date)
}

export function utc(unixSeconds: number): string {
  return `${new Date(unixSeconds * 1000)
    .toISOString()
    .replace('T', ' ')
    .replace(/\.000Z$/, '')} UTC`
}

/** The beginning and the end of an ID, whose middle tells people nothing. */
export function shortId(id: string): string {
  const at = id.indexOf('_') + 1
  return id.length - at <= 12 ? id : `${id.slice(0, at)}…${id.slice(-8)}`
}
