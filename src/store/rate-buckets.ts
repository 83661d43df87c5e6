// The calls that keys have left. One row per key, a token bucket told by one number: when it will be full again, by
// the database's clock. All API processes take from the same bucket, and what a bucket has not is not taken.
import { sql } from 'kysely'
import type { ClaimSql, Writer } from './store.ts'

export interface Bucket {
  /** Calls that a full bucket holds. */
  calls_max: number
  /** In which it gains one call, Unix µs. */
  interval_us: number
}

export interface Taken {
  /** As many as were asked for, or what there was. */
  granted: number
  /** Until the bucket is full, in µs. */
  full_in_us: number
}

export async function takeCalls(
  tx: Writer,
  { now }: ClaimSql,
  key_id: string,
  calls: number,
  { calls_max, interval_us }: Bucket,
): Promise<Taken> {
  // Written into the statement as literals, so that their type is clear to every database.
  const interval = sql.lit(interval_us)
  const capacity = sql.lit(calls_max * interval_us)
  const now_us = sql<number>`CAST(${now} * 1000 AS bigint)`
  const missing = sql<number>`(CASE WHEN rate_buckets.full_at > ${now_us} THEN rate_buckets.full_at - ${now_us} ELSE 0 END)`
  const there = sql<number>`(CASE WHEN ${missing} < ${capacity} THEN (${capacity} - ${missing}) / ${interval} ELSE 0 END)`
  const granted = sql<number>`(CASE WHEN ${there} < ${sql.lit(calls)} THEN ${there} ELSE ${sql.lit(calls)} END)`
  const first = Math.min(calls, calls_max)
  return await tx
    .insertInto('rate_buckets')
    .values({
      key_id,
      granted: first,
      full_at: sql<number>`${now_us} + ${sql.lit(first * interval_us)}`,
    })
    .onConflict((oc) =>
      oc.column('key_id').doUpdateSet({
        granted,
        full_at: sql<number>`${now_us} + ${missing} + ${granted} * ${interval}`,
      }),
    )
    .returning(['granted', sql<number>`full_at - ${now_us}`.as('full_in_us')])
    .executeTakeFirstOrThrow()
}
