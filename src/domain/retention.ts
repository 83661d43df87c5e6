// Retention that deletes content early: results some time after they were fetched, or after a grace period, and input
// with its batch. A plan, a key and a batch may each set it; the shortest times apply. Records and money stay.
import { durationMs, durationText } from './days.ts'
import { invalidParam } from './errors.ts'

export interface Retention {
  /** The time from the fetch of results to their deletion. */
  results_ms: number
  /** The time from the end of a batch to the deletion of its results, fetched or not. */
  grace_ms: number
}

/** A retention in the API: durations such as `0h`. */
export interface RetentionTexts {
  results: string
  grace?: string | undefined
}

export const GRACE = '1d'

/** Reads a retention from a request. Throws invalid_request. */
export function parseRetention({ results, grace = GRACE }: RetentionTexts): Retention {
  const read = (name: string, text: string): number => {
    const ms = durationMs(text)
    if (ms !== null) return ms
    const param = `retention.${name}`
    throw invalidParam(param, `\`${param}\` must be a duration such as "0h", "10m" or "1d".`)
  }
  return { results_ms: read('results', results), grace_ms: read('grace', grace) }
}

export function readRetention(json: string | null): Retention | null {
  return json === null ? null : JSON.parse(json)
}

/** The column as the API shows it. */
export function shownRetention(json: string | null): Required<RetentionTexts> | undefined {
  const retention = readRetention(json)
  if (retention === null) return undefined
  return { results: durationText(retention.results_ms), grace: durationText(retention.grace_ms) }
}

/** The shortest times of several retentions, as the column of a batch; null without any. */
export function retentionText(all: readonly (Retention | null)[]): string | null {
  const given = all.filter((one) => one !== null)
  if (given.length === 0) return null
  const strictest: Retention = {
    results_ms: Math.min(...given.map(({ results_ms }) => results_ms)),
    grace_ms: Math.min(...given.map(({ grace_ms }) => grace_ms)),
  }
  return JSON.stringify(strictest)
}

// The fetched ranges of results, disjoint and in order.

type Range = readonly [start: number, end: number]
/** Fetched ranges by part and unit of the results: `output_bytes`, `error_lines`. */
export type Fetched = Readonly<Record<string, readonly Range[]>>

/** The limit of ranges, more than any client makes that reads a file in pieces; further ones are not counted. */
const RANGES_MAX = 1_000

export function withRange(ranges: readonly Range[], [start, end]: Range): readonly Range[] {
  const apart = ranges.filter(([from, to]) => to < start || from > end)
  const met = ranges.filter((range) => !apart.includes(range))
  const merged: Range = [
    Math.min(start, ...met.map(([from]) => from)),
    Math.max(end, ...met.map(([, to]) => to)),
  ]
  const all = [...apart, merged].sort(([a], [b]) => a - b)
  return all.length > RANGES_MAX ? ranges : all
}

/** Whether the ranges cover 0 to `end`. */
export function covers(ranges: readonly Range[] = [], end: number): boolean {
  const [first] = ranges
  return first !== undefined && first[0] === 0 && first[1] >= end
}
