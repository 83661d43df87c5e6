// Opening hours say when an upstream may be used: windows of the week in a time zone, each with its own concurrency.
// Wall-clock times are turned into instants day by day, so a window keeps its wall-clock times across daylight saving.
import { createRequire } from 'node:module'
import type { Temporal } from 'temporal-polyfill'

/** A weekly window. It opens on each of `days`, and ends on the next day if `to` is not later than `from`. */
export interface HoursWindow {
  /** Days of the week by ISO 8601: 1 is Monday. */
  days: readonly number[]
  /** Minutes after midnight; `to` is at most 1440. */
  from: number
  to: number
  /** The IANA name of the time zone. */
  timezone: string
  /** The limit of lines in flight; 0: closed; null: the upstream's own limit. */
  concurrency_max: number | null
}

/** A state between `since` and `until` (Unix ms, `until` excluded; infinite without a further change). */
interface Opening {
  /** The limit of lines in flight; null: the upstream's own limit. */
  concurrency_max: number | null
  since: number
  until: number
}

/** The number of days for which changes are computed, ahead and back. */
const DAYS_AHEAD = 9
const DAYS_BACK = 8
const DAY_MINUTES = 1440
const KNOWN_MS = 7.5 * DAY_MINUTES * 60_000

export function isTimeZone(name: string): boolean {
  try {
    new Intl.DateTimeFormat('en', { timeZone: name })
    return true
  } catch {
    return false
  }
}

/**
 * The opening hours of an upstream. The first window that contains a moment applies. Outside all windows the upstream
 * is closed, or open if every window is a closed one.
 */
export class OpeningHours {
  readonly #windows: readonly HoursWindow[]
  readonly #outside: number | null
  /** The last computed state, to which most queries apply. */
  #known: Opening = { concurrency_max: null, since: 0, until: 0 }

  constructor(windows: readonly HoursWindow[]) {
    this.#windows = windows
    this.#outside = windows.every(({ concurrency_max }) => concurrency_max === 0) ? null : 0
  }

  /** The state at `now`, Unix ms. */
  at(now: number): Opening {
    const known = this.#known
    if (known.since <= now && now < known.until) return known
    this.#known = this.#find(now)
    return this.#known
  }

  #find(now: number): Opening {
    const spans = this.#windows.map((window) => spansOf(window, now))
    const valueAt = (at: number): number | null => {
      const found = this.#windows.find((_, i) => spans[i]!.some(({ start, end }) => start <= at && at < end))
      return found ? found.concurrency_max : this.#outside
    }
    const concurrency_max = valueAt(now)
    // Days are complete only within this time.
    const isKnown = (at: number): boolean => Math.abs(at - now) < KNOWN_MS
    const all = spans.flat().flatMap(({ start, end }) => [start, end])
    const edges = [...new Set(all.filter(isKnown))].sort((a, b) => a - b)
    const differs = (at: number): boolean => valueAt(at) !== concurrency_max
    const until = edges.find((edge) => edge > now && differs(edge)) ?? Number.POSITIVE_INFINITY
    // A time just before an edge has the value of the previous edge.
    const changed = edges.findLast((edge) => edge <= now && differs(edge - 1))
    return { concurrency_max, since: changed ?? Number.NEGATIVE_INFINITY, until }
  }
}

/** Whether any of several upstreams is open, since when and until when; `null` stands for an upstream without hours. */
export function openingOf(
  hours: readonly (OpeningHours | null)[],
  now: number,
): { open: boolean; since: number; until: number } {
  const openings = hours.map((one) => one?.at(now) ?? ALWAYS)
  const open = openings.filter(({ concurrency_max }) => concurrency_max !== 0)
  const until = Math.min(...openings.map((one) => one.until))
  if (open.length === 0) return { open: false, since: Math.max(...openings.map((one) => one.since)), until }
  return { open: true, since: Math.min(...open.map((one) => one.since)), until }
}

const ALWAYS: Opening = {
  concurrency_max: null,
  since: Number.NEGATIVE_INFINITY,
  until: Number.POSITIVE_INFINITY,
}

/** The end (Unix ms) of work that takes `neededMs` open milliseconds, if it is before `limit`; else infinity. */
export function finishAt(
  hours: readonly (OpeningHours | null)[],
  now: number,
  neededMs: number,
  limit: number,
): number {
  let left = neededMs
  for (let at = now; at < limit; ) {
    const { open, until } = openingOf(hours, at)
    if (open && at + left <= until) return at + left
    if (open) left -= until - at
    at = until
  }
  return Number.POSITIVE_INFINITY
}

/** The next time at which an upstream is open (Unix ms): `now`, a later time, or infinity. */
export function opensAt(hours: readonly (OpeningHours | null)[], now: number): number {
  return finishAt(hours, now, 0, now + DAYS_AHEAD * DAY_MINUTES * 60_000)
}

function spansOf({ days, from, to, timezone }: HoursWindow, now: number): { start: number; end: number }[] {
  const { Instant } = temporal()
  const today = Instant.fromEpochMilliseconds(now).toZonedDateTimeISO(timezone).toPlainDate()
  const spans: { start: number; end: number }[] = []
  for (let offset = -DAYS_BACK; offset <= DAYS_AHEAD; offset++) {
    const day = today.add({ days: offset })
    if (!days.includes(day.dayOfWeek)) continue
    const endDay = to > from ? day : day.add({ days: 1 })
    spans.push({ start: instantOf(day, from, timezone), end: instantOf(endDay, to, timezone) })
  }
  return spans
}

/** The instant of a wall-clock time: an hour later if daylight saving skips it, the first if the time comes twice. */
function instantOf(day: Temporal.PlainDate, minutes: number, timezone: string): number {
  const { PlainTime } = temporal()
  const date = minutes === DAY_MINUTES ? day.add({ days: 1 }) : day
  const time = new PlainTime(Math.floor(minutes / 60) % 24, minutes % 60)
  return date.toZonedDateTime({ timeZone: timezone, plainTime: time }).epochMilliseconds
}

let loaded: typeof Temporal | null = null

/** Temporal of Node 26 and later; for older versions a package, loaded only where hours are configured. */
function temporal(): typeof Temporal {
  if (loaded === null) {
    const own: unknown = Reflect.get(globalThis, 'Temporal')
    const isOwn = (found: unknown): found is typeof Temporal => found !== undefined
    const found = isOwn(own) ? own : createRequire(import.meta.url)('temporal-polyfill').Temporal
    loaded = found
    return found
  }
  return loaded
}
