// Days of the UTC calendar, as whole numbers counted from 1970-01-01. Usage is stored by day.

export const DAY_MS = 86_400_000
export const HOUR_MS = 3_600_000

/** The start of the UTC hour of `at`, both Unix ms. */
export function startOfHour(at: number): number {
  return Math.floor(at / HOUR_MS) * HOUR_MS
}

/** The UTC day of a time in Unix ms. */
export function dayOf(at: number): number {
  return Math.floor(at / DAY_MS)
}

/** The start of the day, Unix ms. */
export function startOfDay(day: number): number {
  return day * DAY_MS
}

export function dayText(day: number): string {
  return new Date(startOfDay(day)).toISOString().slice(0, 10)
}

/** Reads a day such as `2026-11-21`; null for other text. */
export function parseDay(text: string): number | null {
  if (!/^\d{4}-\d{2}-\d{2}$/.test(text)) return null
  const at = Date.parse(`${text}T00:00:00Z`)
  if (Number.isNaN(at)) return null
  const day = dayOf(at)
  // Some engines parse 2026-02-30 as 2 March.
  return dayText(day) === text ? day : null
}

// The units of durations: a duration is a whole number and a unit, `250ms 5s 10m 24h 90d`.

const UNIT_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

type Unit = keyof typeof UNIT_MS

/** The units in a regular expression. */
export const DURATION_UNITS = Object.keys(UNIT_MS).join('|')

/** The duration in ms; null when `text` is no duration or exceeds the largest exact number. */
export function durationMs(text: string): number | null {
  const [, digits, unit = ''] = /^(\d+)([a-z]+)$/.exec(text) ?? []
  if (!isUnit(unit)) return null
  const ms = Number(digits) * UNIT_MS[unit]
  return Number.isSafeInteger(ms) ? ms : null
}

/** The completion window of a service that does not state its own. */
const WINDOW = '24h'

/** The completion window of a batch without one: the longest of the plan's windows, given as texts. */
export function defaultWindow(offered: readonly string[]): string {
  const length = (text: string): number => durationMs(text) ?? 0
  return offered.toSorted((a, b) => length(b) - length(a))[0] ?? WINDOW
}

/** The shortest way to write `ms` as a duration: 86400000 is `1d`, 90000 is `90s`. */
export function durationText(ms: number): string {
  if (!Number.isSafeInteger(ms) || ms < 0) throw new RangeError(`${ms} is not a whole number of milliseconds`)
  if (ms === 0) return '0s'
  for (const unit of ['d', 'h', 'm', 's'] as const) {
    if (ms % UNIT_MS[unit] === 0) return `${ms / UNIT_MS[unit]}${unit}`
  }
  return `${ms}ms`
}

function isUnit(unit: string): unit is Unit {
  return Object.hasOwn(UNIT_MS, unit)
}
