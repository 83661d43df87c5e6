// The tables of HTTP calls: the record of each call, the answers under an Idempotency-Key, and the rate-limit buckets
// of keys.
import { sql } from 'kysely'
import { firstIdAt } from '../domain/ids.ts'
import { type AuditWindow, type Listed, listed, type Page, rowsInWindow } from './page.ts'
import {
  changedRows,
  deleteRows,
  inserting,
  insertOnce,
  NOW,
  selectRows,
  slices,
  updateRows,
} from './rows.ts'
import type { HttpRequestRow, IdempotencyRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** The suffix of a recorded path for a call that changes nothing. */
export const DRY_RUN = '?dry_run=true'

const IS_CHANGE = sql<boolean>`method NOT IN ('GET', 'HEAD') AND path NOT LIKE ${sql.lit(`%${DRY_RUN}`)}`

interface HttpRequestFilter {
  method?: string | undefined
  withoutReads?: true | undefined
  /** A status such as `404`, or a class such as `4xx`. */
  status?: string | undefined
  /** A prefix of the path. */
  path?: string | undefined
  key_id?: string | undefined
  /** The earliest time of a call, Unix ms. */
  since: number
  until?: number | undefined
}

export async function listHttpRequests(
  db: Reader,
  project_id: string,
  { method, withoutReads, status, path, key_id, since, until, ...page }: Page & HttpRequestFilter,
): Promise<Listed<Omit<HttpRequestRow, 'response'>>> {
  const calls = selectRows(db, 'http_requests', { project_id })
    .select([
      ...(['id', 'project_id', 'key_id', 'method', 'path', 'status'] as const),
      ...(['created', 'duration_ms', 'entity', 'traceparent'] as const),
    ])
    .where('id', '>=', firstIdAt('request', since))
  const within = until === undefined ? calls : calls.where('id', '<', firstIdAt('request', until))
  return await listed(within, 'id', page, [
    method !== undefined && sql<boolean>`method = ${method}`,
    withoutReads !== undefined && IS_CHANGE,
    key_id !== undefined && sql<boolean>`key_id = ${key_id}`,
    path !== undefined && sql<boolean>`substr(path, 1, ${sql.lit(path.length)}) = ${path}`,
    status !== undefined &&
      (status.endsWith('xx')
        ? sql<boolean>`status / 100 = ${Number(status[0])}`
        : sql<boolean>`status = ${Number(status)}`),
  ])
}

/** Answered calls in the order of their answers. */
export async function listAnsweredCalls(db: Reader, window: AuditWindow) {
  const { after } = window
  const begin = { operator: '>', at: [after.at, after.id] } as const
  const all = db.selectFrom('http_requests').selectAll()
  const { rows, end } = await rowsInWindow(all, ['created', 'id'], begin, window)
  return { rows, end: end ? { at: end.created, id: end.id } : null }
}

/** Deletes records of calls before `before` (Unix ms), at most `limit` of them; returns their number. */
export async function forgetHttpRequests(tx: Writer, before: number, limit: number): Promise<number> {
  const first_kept = firstIdAt('request', before)
  const old = tx
    .selectFrom('http_requests')
    .select('id')
    .where('id', '<', first_kept)
    .orderBy('id')
    .limit(limit)
  return await changedRows(tx.deleteFrom('http_requests').where('id', 'in', old))
}

/** Deletes all but the newest `count` records; IDs begin with their time. */
export async function keepNewestAnonymousRequests(tx: Writer, count: number): Promise<void> {
  await tx
    .deleteFrom('anonymous_requests')
    .where('id', '<=', (qb) =>
      qb.selectFrom('anonymous_requests').select('id').orderBy('id', 'desc').limit(1).offset(count),
    )
    .execute()
}

// The answers under an Idempotency-Key. A row is inserted and completed in the transaction of the call's work, so other
// transactions see it only once the work is done, and a crash leaves no row that would block a retry.

type RowKey = Pick<IdempotencyRow, 'project_id' | 'route' | 'key'>

function rowKey({ project_id, route, key }: RowKey): RowKey {
  return { project_id, route, key }
}

/** The row of this key on any of `routes`, unless it has expired. */
export async function readIdempotency(
  db: Reader,
  { project_id, key }: Pick<RowKey, 'project_id' | 'key'>,
  routes: readonly string[],
  now: number,
): Promise<IdempotencyRow | undefined> {
  return await selectRows(db, 'idempotency_keys', { project_id, route: routes, key })
    .selectAll()
    .where('expires', '>', now)
    .limit(1)
    .executeTakeFirst()
}

/**
 * Reserves the key for this transaction, after waiting for a concurrent transaction with the key to end. False if
 * another call has the key.
 */
export async function reserveIdempotencyKey(
  tx: Writer,
  row: Omit<IdempotencyRow, 'state' | 'status' | 'response'>,
): Promise<boolean> {
  await deleteRows(tx, 'idempotency_keys', rowKey(row)).where('expires', '<=', row.created).execute()
  return await insertOnce(tx, 'idempotency_keys', { ...row, state: 'in_progress' })
}

/**
 * Stores the answers of calls of one project at once. Returns the keys that were free; keys that begin with
 * `forgettable` always are.
 */
export async function storeAnswers(
  tx: Writer,
  rows: readonly IdempotencyRow[],
  forgettable: string,
  now: number,
): Promise<ReadonlySet<string>> {
  const stored = new Set<string>()
  // Calls without a key may be equal.
  for (const some of slices([...new Map(rows.map((row) => [row.key, row])).values()])) {
    const columns = ['fingerprint', 'state', 'request_id', 'status', 'response', 'created', 'expires']
    const values = columns.map((column) => sql`${sql.ref(column)} = ${sql.ref(`excluded.${column}`)}`)
    const { rows: free } = await sql<{ key: string }>`${inserting('idempotency_keys', some)}
      ON CONFLICT (project_id, route, key) DO UPDATE SET ${sql.join(values)}
      WHERE idempotency_keys.expires <= ${now} OR idempotency_keys.key LIKE ${`${forgettable}%`}
      RETURNING key`.execute(tx)
    for (const { key } of free) stored.add(key)
  }
  return stored
}

/** Frees the idempotency key for the next call. */
export async function dropIdempotencyKey(tx: Writer, row: RowKey): Promise<void> {
  await deleteRows(tx, 'idempotency_keys', rowKey(row)).execute()
}

/** Stores the answer if the key belongs to this request; does not wait for a row of another request. */
export async function completeIdempotencyKey(
  tx: Writer,
  row: RowKey & Pick<IdempotencyRow, 'request_id'>,
  answer: { status: number; response: string },
): Promise<void> {
  await updateRows(tx, 'idempotency_keys', { ...rowKey(row), request_id: row.request_id })
    .set({ ...answer, state: 'done' })
    .execute()
}

/** Deletes keys that have expired by `now`, at most `limit` of them; returns how many. */
export async function forgetIdempotencyKeys(tx: Writer, now: number, limit: number): Promise<number> {
  const expired = tx
    .selectFrom('idempotency_keys')
    .select(['project_id', 'route', 'key'])
    .where('expires', '<=', now)
    .limit(limit)
  return await changedRows(
    tx
      .deleteFrom('idempotency_keys')
      .where((eb) =>
        eb(eb.refTuple('project_id', 'route', 'key'), 'in', expired.$asTuple('project_id', 'route', 'key')),
      ),
  )
}

/**
 * The rate limit of an API key, a token bucket stored as one number: the time at which it will be full again, by the
 * database's clock. All API processes use the same bucket, and a call that it lacks is not granted.
 */
export interface Bucket {
  /** The calls in a full bucket. */
  calls_max: number
  /** The time in which the bucket gains one call, in µs. */
  interval_us: number
}

interface Taken {
  /** The number of granted calls: all that were asked for, or the rest. */
  granted: number
  /** The time until the bucket is full, in µs. */
  full_in_us: number
}

export async function takeCalls(
  tx: Writer,
  key_id: string,
  calls: number,
  { calls_max, interval_us }: Bucket,
): Promise<Taken> {
  // Literals have a clear type in every database.
  const interval = sql.lit(interval_us)
  const capacity = sql.lit(calls_max * interval_us)
  const now_us = sql<number>`CAST(${NOW} * 1000 AS bigint)`
  // The clock may have been ahead at the last call, so the missing part is bounded by the capacity.
  const missing = sql<number>`(CASE WHEN rate_buckets.full_at > ${now_us} + ${capacity} THEN ${capacity} WHEN rate_buckets.full_at > ${now_us} THEN rate_buckets.full_at - ${now_us} ELSE 0 END)`
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
