// Records of HTTP calls in PostgreSQL, partitioned by UTC month: a month that is past its retention is dropped as a
// whole, without reading or vacuuming its rows. IDs begin with their time, so a month is a range of the primary key,
// and reading a record touches one partition. Maintenance makes partitions ahead of time; a row whose partition is
// missing makes it (`missingMonth`).
import { type Kysely, sql } from 'kysely'
import { decodeTime, encodeTime } from 'ulid'
import { ID_PREFIXES } from '../../domain/ids.ts'
import { type Period, windowAt } from '../../domain/limit.ts'
import type { Schema } from '../schema.ts'

/** Advisory lock: one process at a time makes or drops partitions. */
const MONTHS_LOCK = 7_310_578
/** Partitions made ahead of the current month's. */
const AHEAD = 2

/** SQLSTATE check_violation: also the error of a row that has no partition. */
const NO_PARTITION = '23514'

interface Partition {
  name: string
  /** The first ID in it. */
  from: string
  /** The first ID behind it. */
  to: string
}

/** The start (Unix ms) of the month whose partition a failed insert missed; null for any other error. */
export function missingMonth(error: unknown): number | null {
  if (!(error instanceof Error && 'code' in error && error.code === NO_PARTITION)) return null
  if (!('table' in error && error.table === 'http_requests' && 'detail' in error)) return null
  const id = /req_[0-9a-z]{26}/.exec(String(error.detail))
  const time = id ? timeOf(id[0]) : null
  return time === null ? null : windowAt('month', time).start
}

/** Makes the partitions of the months that these times (Unix ms) fall into, where they are missing. */
export async function makeMonths(db: Kysely<Schema>, times: readonly number[]): Promise<void> {
  await db.transaction().execute((tx) =>
    makeMissing(
      tx,
      times.map((time) => windowAt('month', time)),
    ),
  )
}

/** Makes the partitions of the current and the next months, and drops those that ended before `keepFrom` (Unix ms). */
export async function maintainMonths(db: Kysely<Schema>, now: number, keepFrom: number): Promise<void> {
  const known = await partitions(db)
  const wanted = monthsFrom(now)
  if (wanted.some((month) => !isCovered(month, known)))
    await db.transaction().execute((tx) => makeMissing(tx, wanted))
  const firstKept = firstId(keepFrom)
  const expired = known.filter(({ to }) => to <= firstKept)
  if (expired.length > 0)
    await db.transaction().execute(async (tx) => {
      await lockMonths(tx)
      for (const { name } of expired) await sql`DROP TABLE IF EXISTS ${sql.table(name)}`.execute(tx)
    })
}

/** In a transaction. A partition is created as a table of its own and attached: `PARTITION OF` would block writers. */
async function makeMissing(tx: Kysely<Schema>, months: readonly Period[]): Promise<void> {
  await lockMonths(tx)
  for (const month of months) {
    if (isCovered(month, await partitions(tx))) continue
    const name = sql.table(
      `http_requests_${new Date(month.start).toISOString().slice(0, 7).replace('-', '_')}`,
    )
    await sql`CREATE TABLE ${name} (LIKE http_requests INCLUDING DEFAULTS INCLUDING INDEXES)`.execute(tx)
    await sql`ALTER TABLE http_requests ATTACH PARTITION ${name}
      FOR VALUES FROM (${sql.lit(firstId(month.start))}) TO (${sql.lit(firstId(month.end))})`.execute(tx)
  }
}

async function lockMonths(tx: Kysely<Schema>): Promise<void> {
  await sql`SELECT pg_advisory_xact_lock(${sql.lit(MONTHS_LOCK)})`.execute(tx)
}

async function partitions(db: Kysely<Schema>): Promise<Partition[]> {
  const { rows } = await sql<{ name: string; bound: string }>`
    SELECT relname AS name, pg_get_expr(relpartbound, pg_class.oid) AS bound
    FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'http_requests'::regclass`.execute(db)
  return rows.map(({ name, bound }) => {
    const [, from, to] = /FROM \('([^']*)'\) TO \('([^']*)'\)/.exec(bound) ?? []
    if (from === undefined || to === undefined)
      throw new Error(`the partition ${name} of http_requests is for ${bound}`)
    return { name, from, to }
  })
}

function isCovered(month: Period, known: readonly Partition[]): boolean {
  const [from, to] = [firstId(month.start), firstId(month.end)]
  return known.some((partition) => partition.from <= from && to <= partition.to)
}

function monthsFrom(now: number): Period[] {
  const months = [windowAt('month', now)]
  for (let i = 0; i < AHEAD; i++) months.push(windowAt('month', months.at(-1)?.end ?? now))
  return months
}

/** Greater than every ID of an earlier time, and at most as great as the IDs of this time or later. */
function firstId(time: number): string {
  return ID_PREFIXES.request + encodeTime(time, 10).toLowerCase()
}

function timeOf(id: string): number | null {
  try {
    return decodeTime(id.slice(ID_PREFIXES.request.length).toUpperCase())
  } catch {
    return null
  }
}
