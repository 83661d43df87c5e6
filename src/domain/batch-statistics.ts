// Statistics of a batch: its failed lines by kind, and how many lines finished when.
import { HOUR_MS, startOfHour } from './days.ts'
import { recordOf } from './json-record.ts'
import { sumOf } from './money.ts'

/**
 * Failed lines of a batch with one code and one pattern of their message. The number of groups is bounded: beyond it a
 * code has one group for all its further messages.
 */
export interface ErrorGroup {
  code: string
  /** Null for the messages of a code that found no group of their own. */
  pattern: string | null
  /** That of the first line. */
  message: string
  lines: number
}

const GROUPS_MAX = 40
const MESSAGE_CHARACTERS_MAX = 500

export function groupErrors(errors: Iterable<{ code: string; message: string }>): ErrorGroup[] {
  const groups = new Map<string, ErrorGroup>()
  let last: { code: string; message: string; group: ErrorGroup } | undefined
  for (const { code, message } of errors) {
    // Lines that fail together mostly fail alike.
    if (last?.code !== code || last.message !== message) {
      const pattern = errorPattern(message)
      const key = `${code}\n${pattern}`
      const group = groups.get(key) ?? {
        ...{ code, pattern, lines: 0 },
        message: message.slice(0, MESSAGE_CHARACTERS_MAX),
      }
      groups.set(key, group)
      last = { code, message, group }
    }
    last.group.lines++
  }
  return [...groups.values()]
}

/** `known` with the lines of `more`, which may be negative: lines that are taken back. */
export function addErrorGroups(known: readonly ErrorGroup[], more: readonly ErrorGroup[]): ErrorGroup[] {
  const groups = known.map((group) => ({ ...group }))
  const find = (code: string, pattern: string | null): ErrorGroup | undefined =>
    groups.find((group) => group.code === code && group.pattern === pattern)
  for (const one of more) {
    const own = find(one.code, one.pattern) ?? (one.lines < 0 ? find(one.code, null) : undefined)
    const isFull = groups.length >= GROUPS_MAX
    const group = own ?? (isFull ? find(one.code, null) : undefined)
    if (group) group.lines += one.lines
    else if (one.lines > 0) groups.push({ ...one, pattern: isFull ? null : one.pattern })
  }
  return groups.filter(({ lines }) => lines > 0)
}

/** Messages of one kind differ in numbers, IDs and whatever else has a digit in it. */
const WORDS_WITH_DIGITS = /\w*\d\w*/g
const CHARACTERS_MAX = 200

/** Each word that has a digit becomes `0`. */
export function errorPattern(message: string): string {
  return message.replace(WORDS_WITH_DIGITS, '0').slice(0, CHARACTERS_MAX)
}

/** The sums of finished lines in a timeline, in the order in which they are stored: new ones come last. */
export const FIELDS = [
  'completed',
  'failed',
  'prompt_tokens',
  'completion_tokens',
  'cost_nanos',
  'not_run',
] as const
export type Finished = Record<(typeof FIELDS)[number], number>
export const NOTHING: Finished = recordOf(FIELDS, () => 0)

export interface TimelinePoint extends Finished {
  /** Beginning of its interval, Unix ms. */
  at: number
}

/**
 * Counts of finished lines by time, in intervals of equal length. Their number is bounded: beyond it, the interval
 * doubles and neighbours are merged.
 */
export interface Timeline {
  interval_ms: number
  /** In order of time; intervals in which nothing finished are left out. */
  points: TimelinePoint[]
}

export const POINTS_MAX = 200
const INTERVAL_MS_MIN = 1000

export const EMPTY_TIMELINE: Timeline = { interval_ms: INTERVAL_MS_MIN, points: [] }

/** `more` may be negative: reversed counts are taken from the newest points first, and no point becomes negative. */
export function addToTimeline({ interval_ms, points }: Timeline, more: Finished, now: number): Timeline {
  const added = points.map((point) => ({ ...point }))
  const at = Math.floor(now / interval_ms) * interval_ms
  // The clock may have been set back: what is new is never before what is known.
  const last = added.at(-1)
  const current = last && last.at >= at ? last : { at, ...NOTHING }
  if (current !== last) added.push(current)
  for (const field of FIELDS) {
    current[field] = sumOf(current[field], more[field])
    for (let i = added.length - 1; i > 0 && added[i]![field] < 0; i--) {
      added[i - 1]![field] += added[i]![field]
      added[i]![field] = 0
    }
    const first = added[0]!
    first[field] = Math.max(0, first[field])
  }
  return thinned({ interval_ms, points: added.filter((point) => FIELDS.some((field) => point[field] > 0)) })
}

/** The hours of the clock that end with the one of `now`, in which nothing has finished yet. */
export function emptyHours(number: number, now: number): TimelinePoint[] {
  const last = startOfHour(now)
  return Array.from({ length: number }, (_, i) => ({ at: last - (number - 1 - i) * HOUR_MS, ...NOTHING }))
}

/** Adds the points of a timeline to the hours in which their intervals begin. */
export function addToHours(hours: readonly TimelinePoint[], { points }: Timeline): void {
  const first = hours[0]?.at ?? 0
  for (const point of points) {
    const hour = hours[Math.floor((point.at - first) / HOUR_MS)]
    if (hour) for (const field of FIELDS) hour[field] = sumOf(hour[field], point[field])
  }
}

export function plus(a: Finished, b: Finished): Finished {
  return recordOf(FIELDS, (field) => sumOf(a[field], b[field]))
}

function thinned(timeline: Timeline): Timeline {
  let { interval_ms, points } = timeline
  while (points.length > POINTS_MAX) {
    interval_ms *= 2
    const merged: TimelinePoint[] = []
    for (const point of points) {
      const at = Math.floor(point.at / interval_ms) * interval_ms
      const last = merged.at(-1)
      if (last?.at === at) for (const field of FIELDS) last[field] = sumOf(last[field], point[field])
      else merged.push({ ...point, at })
    }
    points = merged
  }
  return { interval_ms, points }
}
