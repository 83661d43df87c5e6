// Days of the UTC calendar, as whole numbers counted from 1970-01-01: what usage is kept by.

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

/** Null for a text that names no day. */
export function parseDay(text: string): number | null {
  if (!/^\d{4}-\d{2}-\d{2}$/.test(text)) return null
  const at = Date.parse(`${text}T00:00:00Z`)
  if (Number.isNaN(at)) return null
  const day = dayOf(at)
  // 2026-02-30 is read as the 2nd of March by some.
  return dayText(day) === text ? day : null
}
