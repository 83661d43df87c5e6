// The statistics of a batch, to which each commit adds in its own transaction: errors by code and message, and finished
// lines by time. A batch has one row of bounded size.
import {
  addErrorGroups,
  addToHours,
  addToTimeline,
  EMPTY_TIMELINE,
  type ErrorGroup,
  emptyHours,
  FIELDS,
  type Finished,
  NOTHING,
  plus,
  type Timeline,
  type TimelinePoint,
} from '../domain/batch-statistics.ts'
import { addSums, type LineSums, NO_LINES, type Tally } from '../ledger/tally.ts'
import { putRows } from '../store/rows.ts'
import type { BatchStatisticsRow } from '../store/schema.ts'
import type { Reader, Writer } from '../store/store.ts'
import { listTimelines, readBatchStatistics } from '../store/usage.ts'

export interface StatisticsDelta {
  finished: Finished
  errors: readonly ErrorGroup[]
}

interface BatchStatistics {
  errors: ErrorGroup[]
  timeline: Timeline
}

/** The sums of these lines for their batch, their chunk and the statistics. */
export function sumOfTallies(tallies: readonly Tally[]): LineSums & Finished {
  const sums = tallies.reduce<LineSums>(addSums, NO_LINES)
  return { ...sums, completed: sums.succeeded }
}

/** Adds statistics by batch ID; the transaction has locked the batches' rows, so no other one writes these. */
export async function addBatchStatistics(
  tx: Writer,
  deltas: ReadonlyMap<string, readonly StatisticsDelta[]>,
  now: number,
): Promise<void> {
  const rows = await readBatchStatistics(tx, [...deltas.keys()])
  const known = new Map(rows.map((row) => [row.batch_id, row]))
  const changed = [...deltas].map(([batch_id, all]): BatchStatisticsRow => {
    const { errors, timeline } = parse(known.get(batch_id))
    const finished = all.map((delta) => delta.finished).reduce(plus, NOTHING)
    const failed = all.flatMap((delta) => delta.errors)
    return {
      batch_id,
      errors: JSON.stringify(addErrorGroups(errors, failed)),
      timeline: format(addToTimeline(timeline, finished, now)),
    }
  })
  await putRows(tx, 'batch_statistics', changed, ['errors', 'timeline'])
}

/** The statistics of a batch; empty before its first commit. */
export async function readStatistics(db: Reader, batch_id: string): Promise<BatchStatistics> {
  const [row] = await readBatchStatistics(db, [batch_id])
  return parse(row)
}

/**
 * The finished lines of the project's batches in each of the last hours. Yields nothing after each piece of the
 * timelines, and the hours at the end.
 */
export async function* readHours(
  db: Reader,
  project_id: string,
  number: number,
  now: number,
): AsyncGenerator<readonly TimelinePoint[]> {
  const hours = emptyHours(number, now)
  // A batch whose window ended earlier has finished no line since.
  for await (const rows of listTimelines(db, project_id, hours[0]?.at ?? now)) {
    for (const row of rows) addToHours(hours, parse({ ...row, errors: '[]' }).timeline)
    yield []
  }
  yield hours
}

/** The number of failed lines by batch ID and code. */
export async function readErrors(
  db: Reader,
  batch_ids: readonly string[],
): Promise<Map<string, Map<string, number>>> {
  const errors = new Map<string, Map<string, number>>()
  for (const row of await readBatchStatistics(db, batch_ids)) {
    const counts = new Map<string, number>()
    for (const { code, lines } of parse(row).errors) counts.set(code, (counts.get(code) ?? 0) + lines)
    errors.set(row.batch_id, counts)
  }
  return errors
}

/** A stored timeline: each point as an array, the time and the values of FIELDS, since commits write it often. */
interface Stored {
  interval_ms: number
  points: number[][]
}

function parse(row: BatchStatisticsRow | undefined): BatchStatistics {
  if (!row) return { errors: [], timeline: EMPTY_TIMELINE }
  const { interval_ms, points }: Stored = JSON.parse(row.timeline)
  const named = points.map(([at = 0, ...values]) => {
    const point = { at, ...NOTHING }
    for (const [i, field] of FIELDS.entries()) point[field] = values[i] ?? 0
    return point
  })
  return { errors: JSON.parse(row.errors), timeline: { interval_ms, points: named } }
}

function format({ interval_ms, points }: Timeline): string {
  const stored: Stored = {
    interval_ms,
    points: points.map((point) => [point.at, ...FIELDS.map((field) => point[field])]),
  }
  return JSON.stringify(stored)
}
