// Records of HTTP calls, by the month: each month of the UTC calendar is a partition, so what is past its retention
// goes as a whole, and no row of it is read or left to vacuum. IDs begin with their time, so a month is a range of
// the primary key, and a record is found in one partition. Months are made ahead by upkeep; a row for one that is
// missing all the same makes it (`missingMonth`), so a new month fails nobody. What a database held before it was
// divided is one partition, whatever its age: its old rows are deleted one by one until it goes, too.
import { type Kysely, sql } from 'kysely'
import { decodeTime, encodeTime } from 'ulid'
import { ID_PREFIXES } from '../../domain/ids.ts'
import { type Period, windowAt } from '../../domain/limit.ts'
import type { Schema } from '../schema.ts'

/** Guards the making and dropping of months among processes. */
const MONTHS_LOCK = 7_310_578
/** Months made ahead of the current one. */
const AHEAD = 2
const ROWS_AT_ONCE = 5_000
const EARLIER = 'http_requests_earlier'

/** SQLSTATE check_violation: also what a row is told for which there is no partition. */
const NO_PARTITION = '23514'

interface Partition {
  name: string
  /** The first ID it takes; null: any before `to`. */
  from: string | null
  /** The first ID it does not take. */
  to: string
}

/** Makes of the plain table one that is kept by the month. Its rows become the partition of all that came before. */
export async function partitionHttpRequests(db: Kysely<Schema> | Kysely<unknown>): Promise<void> {
  const { rows } = await sql<{ last: string | null; now: number }>`
    SELECT (SELECT max(id) FROM http_requests) AS last,
      (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now`.execute(db)
  const { last = null, now = 0 } = rows[0] ?? {}
  const earlier = sql.table(EARLIER)
  await sql`ALTER TABLE http_requests RENAME TO ${earlier}`.execute(db)
  await sql`ALTER TABLE ${earlier} RENAME CONSTRAINT http_requests_pkey TO ${sql.id(`${EARLIER}_pkey`)}`.execute(
    db,
  )
  await sql`CREATE TABLE http_requests (LIKE ${earlier} INCLUDING DEFAULTS) PARTITION BY RANGE (id)`.execute(
    db,
  )
  await sql`ALTER TABLE http_requests ADD PRIMARY KEY (id)`.execute(db)
  if (last === null) await sql`DROP TABLE ${earlier}`.execute(db)
  else {
    const to = firstId(windowAt('month', Math.max(now, timeOf(last) ?? now)).end)
    await sql`ALTER TABLE http_requests ATTACH PARTITION ${earlier}
      FOR VALUES FROM (MINVALUE) TO (${sql.lit(to)})`.execute(db)
  }
  await makeMissing(db, monthsFrom(now))
}

/** For an error that says there is no partition for a row: when its month began (Unix ms). Null for any other. */
export function missingMonth(error: unknown): number | null {
  if (!(error instanceof Error && 'code' in error && error.code === NO_PARTITION)) return null
  if (!('table' in error && error.table === 'http_requests' && 'detail' in error)) return null
  const id = /req_[0-9a-z]{26}/.exec(String(error.detail))
  const time = id ? timeOf(id[0]) : null
  return time === null ? null : windowAt('month', time).start
}

/** Makes the months of these times (Unix ms), where they are missing. */
export async function makeMonths(db: Kysely<Schema>, times: readonly number[]): Promise<void> {
  await db.transaction().execute((tx) =>
    makeMissing(
      tx,
      times.map((time) => windowAt('month', time)),
    ),
  )
}

/** Makes the months to come, and drops those that ended before `keep_from` (Unix ms). */
export async function maintainMonths(db: Kysely<Schema>, now: number, keep_from: number): Promise<void> {
  const known = await partitions(db)
  const wanted = monthsFrom(now)
  if (wanted.some((month) => !isCovered(month, known)))
    await db.transaction().execute((tx) => makeMissing(tx, wanted))
  const first_kept = firstId(keep_from)
  const over = known.filter(({ to }) => to <= first_kept)
  if (over.length > 0)
    await db.transaction().execute(async (tx) => {
      await lockMonths(tx)
      for (const { name } of over) await sql`DROP TABLE IF EXISTS ${sql.table(name)}`.execute(tx)
    })
  if (known.some(({ name, to }) => name === EARLIER && to > first_kept)) await thinOut(db, first_kept)
}

async function thinOut(db: Kysely<Schema>, first_kept: string): Promise<void> {
  for (;;) {
    const { numAffectedRows } = await sql`
      DELETE FROM ${sql.table(EARLIER)} WHERE id IN (
        SELECT id FROM ${sql.table(EARLIER)} WHERE id < ${first_kept} ORDER BY id LIMIT ${ROWS_AT_ONCE}
      )`.execute(db)
    if (Number(numAffectedRows ?? 0) < ROWS_AT_ONCE) return
  }
}

/** In a transaction. The month is made apart and attached, which keeps nobody from writing meanwhile. */
async function makeMissing(tx: Kysely<Schema> | Kysely<unknown>, months: readonly Period[]): Promise<void> {
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

async function lockMonths(tx: Kysely<Schema> | Kysely<unknown>): Promise<void> {
  await sql`SELECT pg_advisory_xact_lock(${sql.lit(MONTHS_LOCK)})`.execute(tx)
}

async function partitions(db: Kysely<Schema> | Kysely<unknown>): Promise<Partition[]> {
  const { rows } = await sql<{ name: string; bound: string }>`
    SELECT relname AS name, pg_get_expr(relpartbound, pg_class.oid) AS bound
    FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'http_requests'::regclass`.execute(db)
  return rows.map(({ name, bound }) => {
    const [, from, to] = /FROM \((?:MINVALUE|'([^']*)')\) TO \('([^']*)'\)/.exec(bound) ?? []
    if (to === undefined) throw new Error(`the partition ${name} of http_requests is for ${bound}`)
    return { name, from: from ?? null, to }
  })
}

function isCovered(month: Period, known: readonly Partition[]): boolean {
  const [from, to] = [firstId(month.start), firstId(month.end)]
  return known.some((one) => (one.from === null || one.from <= from) && to <= one.to)
}

function monthsFrom(now: number): Period[] {
  const months = [windowAt('month', now)]
  for (let i = 0; i < AHEAD; i++) months.push(windowAt('month', months.at(-1)?.end ?? now))
  return months
}

/** No ID of an earlier time is as great, and none of this time or later is smaller. */
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
