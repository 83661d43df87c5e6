// Opening hours say when an upstream may be used: windows of the week in a time zone, each with its own concurrency.
// Wall-clock times are turned into instants day by day, so a window keeps its wall-clock times across daylight saving.
import { createRequire } from 'node:module'
import type { Temporal } from 'temporal-polyfill'

/** One window. It opens on each of `days`, and ends on the next day if `to` is not later than `from`. */
export interface HoursWindow {
  /** ISO: 1 is Monday. */
  days: readonly number[]
  /** Minutes after midnight; `to` at most 1440. */
  from: number
  to: number
  /** IANA name. */
  timezone: string
  /** Lines in flight; 0: closed; null: as many as at any time. */
  concurrency_max: number | null
}

/** A state that holds from `since` until just before `until` (Unix ms; infinite where nothing changes). */
interface Opening {
  /** Null: no bound but the upstream's own. */
  concurrency_max: number | null
  since: number
  until: number
}

/** Further ahead or back nothing is looked for. */
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
 * The first window that contains the moment counts. Outside all windows the upstream is closed, unless all of them are
 * closed ones: then it is open outside them.
 */
export class OpeningHours {
  readonly #windows: readonly HoursWindow[]
  readonly #outside: number | null
  /** The last one found: nearly all questions are about it. */
  #known: Opening = { concurrency_max: null, since: 0, until: 0 }

  constructor(windows: readonly HoursWindow[]) {
    this.#windows = windows
    this.#outside = windows.every(({ concurrency_max }) => concurrency_max === 0) ? null : 0
  }

  /** `now` in Unix ms. */
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
    // Beyond it, days are not complete.
    const isKnown = (at: number): boolean => Math.abs(at - now) < KNOWN_MS
    const all = spans.flat().flatMap(({ start, end }) => [start, end])
    const edges = [...new Set(all.filter(isKnown))].sort((a, b) => a - b)
    const differs = (at: number): boolean => valueAt(at) !== concurrency_max
    const until = edges.find((edge) => edge > now && differs(edge)) ?? Number.POSITIVE_INFINITY
    // Just before an edge the value is that of the edge before it.
    const changed = edges.findLast((edge) => edge <= now && differs(edge - 1))
    return { concurrency_max, since: changed ?? Number.NEGATIVE_INFINITY, until }
  }
}

/** Whether any of several upstreams is open, since when and until when; `null` stands for one without hours. */
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

/** When work of `neededMs` open milliseconds is done (Unix ms), if it is before `limit`; else infinity. */
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

/** When it is next open (Unix ms): now, or later, or never (infinity). */
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

/** A time that daylight saving skips is taken an hour later; of one that comes twice, the first counts. */
function instantOf(day: Temporal.PlainDate, minutes: number, timezone: string): number {
  const { PlainTime } = temporal()
  const date = minutes === DAY_MINUTES ? day.add({ days: 1 }) : day
  const time = new PlainTime(Math.floor(minutes / 60) % 24, minutes % 60)
  return date.toZonedDateTime({ timeZone: timezone, plainTime: time }).epochMilliseconds
}

let loaded: typeof Temporal | null = null

/** Node's own, from version 26 on; before it, a package, loaded only where hours are configured. */
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
