// Days of the UTC calendar, as whole numbers counted from 1970-01-01. Usage is stored by day.

export const DAY_MS = 86_400_000

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
