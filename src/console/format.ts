// Formats numbers, money, durations and times for people. Exact values belong into a title beside them.
import { currentLocale } from './i18n.ts'

/** Caches formats by locale and options: creating one takes longer than formatting many texts. */
function madeOnce<Options, Format>(
  make: new (locale: string, options: Options) => Format,
): (options: Options) => Format {
  const formats = new Map<string, Format>()
  return (options) => {
    const name = currentLocale() + JSON.stringify(options)
    const format = formats.get(name) ?? new make(currentLocale(), options)
    formats.set(name, format)
    return format
  }
}

const numberFormat = madeOnce<Intl.NumberFormatOptions, Intl.NumberFormat>(Intl.NumberFormat)
const dateFormat = madeOnce<Intl.DateTimeFormatOptions, Intl.DateTimeFormat>(Intl.DateTimeFormat)
const relativeFormat = madeOnce<Intl.RelativeTimeFormatOptions, Intl.RelativeTimeFormat>(
  Intl.RelativeTimeFormat,
)

export const count = (value: number): string => numberFormat({}).format(value)

/** A short form of a number: 12,400 becomes 12.4 k, with a space that does not break. */
export function compact(value: number): string {
  const [size, symbol] = SIZES.find(([size]) => value >= size * 0.99995) ?? [1, '']
  const text = numberFormat({ maximumFractionDigits: size === 1 ? 0 : 1 }).format(value / size)
  return symbol === '' ? text : `${text}\u00a0${symbol}`
}

const SIZES = [
  [1e12, 'T'],
  [1e9, 'B'],
  [1e6, 'M'],
  [1e3, 'k'],
] as const

/** An amount in USD: two decimals from a dollar on, three significant digits below: $0.00126. */
export function usd(value: number): string {
  return usdParts(value)
    .map((part) => part.value)
    .join('')
}

function usdParts(value: number): Intl.NumberFormatPart[] {
  const inCents = value === 0 || value >= 1 || Number.isInteger(Number((value * 100).toFixed(7)))
  const digits = inCents ? { maximumFractionDigits: 2 } : { maximumSignificantDigits: 3 }
  return numberFormat({
    style: 'currency',
    currency: 'USD',
    currencyDisplay: 'narrowSymbol',
    ...digits,
  }).formatToParts(value)
}

/** Formats the amounts of a column: as many digits as each needs, with aligned decimal marks. */
export function usdColumn(values: readonly number[]): (value: number) => string {
  const digits = Math.max(2, ...values.map((value) => fractionOf(value).length))
  return (value) => {
    const spaces = FIGURE_SPACE.repeat(Math.max(0, digits - fractionOf(value).length))
    const parts = usdParts(value)
    return parts.map(({ type, value }) => (type === 'fraction' ? value + spaces : value)).join('')
  }
}

/** A space as wide as a digit. */
const FIGURE_SPACE = '\u2007'

function fractionOf(value: number): string {
  return usdParts(value).find(({ type }) => type === 'fraction')?.value ?? ''
}

/** An amount in USD, exact to the nano-dollar. */
export function usdExact(value: number): string {
  return `${numberFormat({ maximumFractionDigits: 9 }).format(value)} USD`
}

/** A percentage: never "100%" before all is done, never "0%" after the first, and above 100% for more than all. */
export function percent(part: number, whole: number): string {
  const share = whole === 0 ? 0 : part / whole
  const show = (value: number, digits: Intl.NumberFormatOptions): string =>
    numberFormat({ style: 'percent', ...digits }).format(value)
  if (share > 0 && share < 1e-5) return `<${show(1e-5, { maximumFractionDigits: 3 })}`
  if (share > 0 && share < 0.01) return show(share, { maximumSignificantDigits: 2 })
  if (share <= 0.99 || share >= 1) return show(share, { maximumFractionDigits: 0 })
  const digits = share < 0.999 ? 1 : 3
  const steps = 100 * 10 ** digits
  return show(Math.floor(share * steps) / steps, { maximumFractionDigits: digits })
}

export function perSecond(value: number): string {
  const digits = value < 1 ? { maximumSignificantDigits: 2 } : { maximumFractionDigits: value < 10 ? 1 : 0 }
  return `${numberFormat(digits).format(value)}/s`
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

/** The value of a quota; null: unlimited. */
export function quotaText(name: string, value: number | null): string {
  return value === null ? '–' : name === 'stored_bytes' ? bytes(value) : count(value)
}

const UNITS = [
  ['day', 86_400, 'd'],
  ['hour', 3_600, 'h'],
  ['minute', 60, 'min'],
  ['second', 1, 's'],
] as const

/** A duration in its two largest units: `2 h 5 min`; below ten seconds `4.2 s`; below a second `350 ms`. */
export function duration(ms: number): string {
  const show = (value: number, symbol: string, decimals = 0): string =>
    `${numberFormat({ maximumFractionDigits: decimals }).format(value)}\u00a0${symbol}`
  if (ms < 999.5) return show(ms, 'ms')
  if (ms < 59_500) return show(ms / 1000, 's', ms < 9_950 ? 1 : 0)
  let rest = Math.round(ms / 1000)
  const parts: string[] = []
  for (const [, seconds, symbol] of UNITS) {
    const whole = Math.floor(rest / seconds)
    rest -= whole * seconds
    if (whole > 0) parts.push(show(whole, symbol))
    if (parts.length === 2 || (parts.length === 1 && whole === 0)) break
  }
  return parts.join(' ')
}

/** The duration between two times in seconds; `<1 s` below one second. */
export function between(from: number, to: number): string {
  return to < from + 1 ? `<${duration(1000)}` : duration((to - from) * 1000)
}

/** A time relative to now: `3 min. ago`, `in 87 min.`, `in 2 hr.`, in the largest unit of which it is at least two. */
export function relative(unixSeconds: number, nowMs: number): string {
  const seconds = unixSeconds - nowMs / 1000
  const [name, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size * 1.95) ?? ['second', 1]
  return relativeFormat({ numeric: 'auto', style: 'short' }).format(Math.round(seconds / size), name)
}

/** A time in the reader's zone; with the year only where it is another one. */
export function dateTime(unixSeconds: number, nowMs: number): string {
  const date = new Date(unixSeconds * 1000)
  const sameYear = date.getFullYear() === new Date(nowMs).getFullYear()
  return dateFormat({
    ...(sameYear ? {} : { year: 'numeric' }),
    month: 'short',
    day: 'numeric',
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
  }).format(date)
}

/** A time of day, `17:03`, with the date where it is another one. */
export function clockTime(unixSeconds: number, nowMs: number): string {
  const date = new Date(unixSeconds * 1000)
  const isToday = date.toDateString() === new Date(nowMs).toDateString()
  return dateFormat({
    ...(isToday ? {} : { month: 'short', day: 'numeric' }),
    hour: '2-digit',
    minute: '2-digit',
  }).format(date)
}

export function utc(unixSeconds: number): string {
  return `${new Date(unixSeconds * 1000)
    .toISOString()
    .replace('T', ' ')
    .replace(/\.000Z$/, '')} UTC`
}

/** The beginning and the end of an ID. */
export function shortId(id: string): string {
  const at = id.indexOf('_') + 1
  return id.length - at <= 12 ? id : `${id.slice(0, at)}…${id.slice(-8)}`
}
