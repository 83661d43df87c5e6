// Content that is not kept: results are destroyed so long after they were fetched, or at the end of a grace period, and the
// input with its batch. A plan, a key and a batch may each say so; the shortest times hold. Records and money stay.
import { durationMs, durationText } from './days.ts'
import { invalidParam } from './errors.ts'

export interface Retention {
  /** How long results are kept once they were fetched. */
  results_ms: number
  /** How long they are kept after the end of their batch, fetched or not. */
  grace_ms: number
}

/** Both are durations such as `0h`. */
export interface RetentionTexts {
  results: string
  grace?: string | undefined
}

export const GRACE = '1d'

/** Throws invalid_request. */
export function parseRetention({ results, grace = GRACE }: RetentionTexts): Retention {
  const read = (name: string, text: string): number => {
    const ms = durationMs(text)
    if (ms !== null) return ms
    const param = `retention.${name}`
    throw invalidParam(param, `\`${param}\` must be a duration such as "0h", "10m" or "1d".`)
  }
  return { results_ms: read('results', results), grace_ms: read('grace', grace) }
}

/** The column `retention`, read. */
export function readRetention(json: string | null): Retention | null {
  return json === null ? null : JSON.parse(json)
}

/** The column as the API shows it. */
export function shownRetention(json: string | null): Required<RetentionTexts> | undefined {
  const retention = readRetention(json)
  if (retention === null) return undefined
  return { results: durationText(retention.results_ms), grace: durationText(retention.grace_ms) }
}

/** The shortest times of these, as the column of a batch; null where none of them destroys anything. */
export function retentionText(all: readonly (Retention | null)[]): string | null {
  const given = all.filter((one) => one !== null)
  if (given.length === 0) return null
  const strictest: Retention = {
    results_ms: Math.min(...given.map(({ results_ms }) => results_ms)),
    grace_ms: Math.min(...given.map(({ grace_ms }) => grace_ms)),
  }
  return JSON.stringify(strictest)
}

// What was fetched of results, in ranges that are apart and in order.

type Range = readonly [start: number, end: number]
/** By part and unit of the results: `output_bytes`, `error_lines`. */
export type Fetched = Readonly<Record<string, readonly Range[]>>

/** More than any client makes that reads a file in pieces; of more ranges, the rest is not counted. */
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

/** Whether they are all of 0 to `end`. */
export function covers(ranges: readonly Range[] = [], end: number): boolean {
  const [first] = ranges
  return first !== undefined && first[0] === 0 && first[1] >= end
}
