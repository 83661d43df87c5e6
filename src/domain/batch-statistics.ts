// Statistics of a batch: its failed lines by kind, and its finished lines by time.
import { HOUR_MS, startOfHour } from './days.ts'
import { recordOf } from './json-record.ts'
import { sumOf } from './money.ts'

/**
 * Failed lines of a batch with one code and one pattern of their message. The number of groups is bounded: beyond it,
 * each code has one group for all further messages.
 */
export interface ErrorGroup {
  code: string
  /** The pattern of the messages; null for the group of all further messages of a code. */
  pattern: string | null
  /** The message of the first line. */
  message: string
  lines: number
}

const GROUPS_MAX = 40
const MESSAGE_CHARACTERS_MAX = 500

export function groupErrors(errors: Iterable<{ code: string; message: string }>): ErrorGroup[] {
  const groups = new Map<string, ErrorGroup>()
  let last: { code: string; message: string; group: ErrorGroup } | undefined
  for (const { code, message } of errors) {
    // Consecutive lines often fail with the same message.
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

/** Adds the groups of `more` to `known`; a negative count removes lines. */
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

/** Words with digits, by which messages of one kind differ: numbers and IDs. */
const WORDS_WITH_DIGITS = /\b\w*\d\w*/g
const CHARACTERS_MAX = 200

/** The message with `0` for each word that has a digit. */
export function errorPattern(message: string): string {
  return message.replace(WORDS_WITH_DIGITS, '0').slice(0, CHARACTERS_MAX)
}

/** The sums of a point, in stored order: a new one must come last. */
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
  /** The start of the interval, Unix ms. */
  at: number
}

/**
 * Counts of finished lines by time, in intervals of equal length. Their number is bounded: beyond it, the interval
 * doubles and neighbours are merged.
 */
export interface Timeline {
  interval_ms: number
  /** The points in order of time, without intervals in which no line finished. */
  points: TimelinePoint[]
}

export const POINTS_MAX = 200
const INTERVAL_MS_MIN = 1000

export const EMPTY_TIMELINE: Timeline = { interval_ms: INTERVAL_MS_MIN, points: [] }

/** Adds counts to a timeline. Negative counts reduce the newest points first, none of them below zero. */
export function addToTimeline({ interval_ms, points }: Timeline, more: Finished, now: number): Timeline {
  const added = points.map((point) => ({ ...point }))
  const at = Math.floor(now / interval_ms) * interval_ms
  // The clock may have been set back: no new point comes before the last one.
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

/** Points without finished lines for the last `number` clock hours, that of `now` included. */
export function emptyHours(number: number, now: number): TimelinePoint[] {
  const last = startOfHour(now)
  return Array.from({ length: number }, (_, i) => ({ at: last - (number - 1 - i) * HOUR_MS, ...NOTHING }))
}

/** Adds the points of a timeline to the hours in which their intervals start. */
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
