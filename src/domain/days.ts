// Days of the UTC calendar, as whole numbers counted from 1970-01-01. Usage is stored by day.

export const DAY_MS = 86_400_000
export const HOUR_MS = 3_600_000

/** By the UTC calendar, as Unix ms. */
export function startOfHour(at: number): number {
  return Math.floor(at / HOUR_MS) * HOUR_MS
}

/** The day in which a moment (Unix ms) lies. */
export function dayOf(at: number): number {
  return Math.floor(at / DAY_MS)
}

/** When the day begins, Unix ms. */
export function startOfDay(day: number): number {
  return day * DAY_MS
}

/** `2026-11-21` */
export function dayText(day: number): string {
  return new Date(startOfDay(day)).toISOString().slice(0, 10)
}

/** Null when the text is not a day. */
export function parseDay(text: string): number | null {
  if (!/^\d{4}-\d{2}-\d{2}$/.test(text)) return null
  const at = Date.parse(`${text}T00:00:00Z`)
  if (Number.isNaN(at)) return null
  const day = dayOf(at)
  // Some engines parse 2026-02-30 as 2 March.
  return dayText(day) === text ? day : null
}

// Durations as people write them: a whole number and a unit, `250ms 5s 10m 24h 90d`.

const UNIT_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

type Unit = keyof typeof UNIT_MS

/** Milliseconds, or null when `text` is not a duration or exceeds the largest exact number. */
export function durationMs(text: string): number | null {
  const match = /^(\d+)([a-z]+)$/.exec(text)
  if (match === null) return null
  const [, digits, unit] = match
  if (digits === undefined || unit === undefined || !isUnit(unit)) return null
  const ms = Number(digits) * UNIT_MS[unit]
  return Number.isSafeInteger(ms) ? ms : null
}

/** The window that is assumed of a service that does not say which it offers. */
const WINDOW = '24h'

/** The window of a batch whose caller names none: the longest that the plan offers, as texts. */
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
