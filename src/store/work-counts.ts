// How much there is to do, counted for metrics. Each count is served by a partial index over what is unfinished,
// so it costs the same however much has been done before.
import { sql } from 'kysely'
import type { BatchStatus } from '../domain/batch.ts'
import { OPEN_STATUSES_SQL } from './batches.ts'
import type { TaskKind } from './schema.ts'
import type { Reader } from './store.ts'

export const OPEN_CHUNK_STATES = ['ready', 'leased', 'parked'] as const

export interface WorkCounts {
  /** Batches that have not ended, by status; those that are absent have none. */
  batches: ReadonlyMap<BatchStatus, number>
  /** The nearest end of an unfinished batch's window, Unix ms. */
  nearest_deadline: number | null
  chunks: Record<(typeof OPEN_CHUNK_STATES)[number], number>
  /** Parked chunks by what they wait for. */
  parked: ReadonlyMap<string, number>
  /** Worker processes whose lease is valid. */
  workers: number
  /** Tasks that could run now, by kind. */
  tasks_due: ReadonlyMap<TaskKind, number>
  /** Blobs pending deletion. */
  blobs_pending_deletion: number
}

export async function readWorkCounts(db: Reader, now: number): Promise<WorkCounts> {
  const batches = await db
    .selectFrom('batches')
    .select(['status', db.fn.countAll().as('count'), db.fn.min('expires_at').as('nearest')])
    .where('status', 'in', OPEN_STATUSES_SQL)
    .groupBy('status')
    .execute()
  const chunksIn = async (state: (typeof OPEN_CHUNK_STATES)[number]): Promise<number> => {
    const { count } = await db
      .selectFrom('chunks')
      .select(db.fn.countAll().as('count'))
      .where('state', '=', sql.lit(state))
      .executeTakeFirstOrThrow()
    return Number(count)
  }
  const parked = await db
    .selectFrom('chunks')
    .select(['parked_reason', db.fn.countAll().as('count')])
    .where('state', '=', sql.lit('parked' as const))
    .groupBy('parked_reason')
    .execute()
  const { count: workers } = await db
    .selectFrom('workers')
    .select(db.fn.countAll().as('count'))
    .where('role', '=', 'worker')
    .where('lease_until', '>', now)
    .executeTakeFirstOrThrow()
  const tasks = await db
    .selectFrom('tasks')
    .select(['kind', db.fn.countAll().as('count')])
    .where('state', '=', sql.lit('ready' as const))
    .where('run_at', '<=', now)
    .groupBy('kind')
    .execute()
  const { count: pendingDeletion } = await db
    .selectFrom('blobs')
    .select(db.fn.countAll().as('count'))
    .where('deletion_pending_since', 'is not', null)
    .executeTakeFirstOrThrow()
  const nearest = batches.map((row) => Number(row.nearest))
  return {
    batches: new Map(batches.map((row) => [row.status, Number(row.count)])),
    nearest_deadline: nearest.length === 0 ? null : Math.min(...nearest),
    chunks: {
      ready: await chunksIn('ready'),
      leased: await chunksIn('leased'),
      parked: await chunksIn('parked'),
    },
    parked: new Map(parked.map((row) => [row.parked_reason ?? 'unknown', Number(row.count)])),
    workers: Number(workers),
    tasks_due: new Map(tasks.map((row) => [row.kind, Number(row.count)])),
    blobs_pending_deletion: Number(pendingDeletion),
  }
}
