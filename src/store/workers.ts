// The sessions of workers, which are the one lease mechanism, and the workers' reports: their own state, the state of
// their model servers, and the amount of work.
//
// A worker opens a session and renews it. Everything that it has claimed, chunks and tasks, is leased as long as its
// session, so a renewal updates one row. Only the database's clock decides when a session expires. Its chunks and tasks
// are then requeued, and the next claim raises their epoch: commits that name the old epoch change nothing.
import { type BatchStatus, OPEN_STATUSES } from '../domain/batch.ts'
import { DAY_MS } from '../domain/days.ts'
import { newId } from '../domain/ids.ts'
import type { WorkerStatus } from '../wire/status.ts'
import { deleteReservationsOfWorker } from './ledger.ts'
import {
  addRows,
  changesRow,
  countRows,
  deleteRows,
  findsRow,
  insertRows,
  NOW,
  putRows,
  selectRows,
  updateRows,
} from './rows.ts'
import type {
  BatchRow,
  ChunkRow,
  LaneReportRow,
  ServerHourRow,
  SessionRole,
  TaskKind,
  TaskRow,
} from './schema.ts'
import type { Reader, Writer } from './store.ts'

export async function openSession(
  tx: Writer,
  lease_ms: number,
  now: number,
  role: SessionRole = 'worker',
): Promise<string> {
  const id = newId('worker', now)
  await tx
    .insertInto('workers')
    .values((eb) => ({
      id,
      role,
      lease_until: eb(NOW, '+', lease_ms),
      started: now,
      lease_ms,
    }))
    .execute()
  return id
}

/** Renews a session. False if it has ended: its leases are lost, and the worker must open another session. */
export async function renewSession(tx: Writer, worker_id: string, lease_ms: number): Promise<boolean> {
  return await changesRow(
    updateRows(tx, 'workers', { id: worker_id })
      .set((eb) => ({ lease_until: eb(NOW, '+', lease_ms), lease_ms }))
      .where('lease_until', '>', NOW),
  )
}

/**
 * Locks a session against expiry until the end of the transaction; false if it has ended. Claims under an ended session
 * would never be requeued.
 */
export async function lockSession(tx: Writer, worker_id: string): Promise<boolean> {
  const live = selectRows(tx, 'workers', { id: worker_id }).where('lease_until', '>', NOW)
  return await findsRow(live.select('id').forKeyShare())
}

/** The chunks that a worker has leased, as far as the database knows. */
export async function leasedChunks(
  db: Reader,
  worker_id: string,
): Promise<Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch'>[]> {
  return await selectRows(db, 'chunks', { worker_id, state: 'leased' })
    .select(['batch_id', 'idx', 'epoch'])
    .execute()
}

/** The tasks that a worker has leased, as far as the database knows. */
export async function leasedTasks(db: Reader, worker_id: string): Promise<Pick<TaskRow, 'id' | 'epoch'>[]> {
  return await selectRows(db, 'tasks', { worker_id, state: 'leased' }).select(['id', 'epoch']).execute()
}

/** Requeues a task at once, unless it was leased again since. */
export async function releaseTask(tx: Writer, { id, epoch }: Pick<TaskRow, 'id' | 'epoch'>): Promise<void> {
  await updateRows(tx, 'tasks', { id, epoch, state: 'leased' })
    .set({ state: 'ready', worker_id: null })
    .execute()
}

/** Ends a session and requeues its chunks and tasks. */
export async function closeSession(tx: Writer, worker_id: string): Promise<void> {
  await deleteRows(tx, 'workers', { id: worker_id }).execute()
  await requeue(tx, worker_id)
}

/** The number of open sessions but `own`, and the time in ms after which the last one expires without a renewal. */
export async function liveSessions(db: Reader, own = ''): Promise<{ count: number; longest_ms: number }> {
  const rows = await db
    .selectFrom('workers')
    .select((eb) => eb('lease_until', '-', NOW).as('left_ms'))
    .where('lease_until', '>', NOW)
    .where('id', '!=', own)
    .execute()
  return { count: rows.length, longest_ms: Math.max(0, ...rows.map((row) => Number(row.left_ms))) }
}

/** Ends every expired session and requeues its work; returns their IDs. */
export async function requeueExpiredLeases(tx: Writer): Promise<string[]> {
  const ended = await tx.deleteFrom('workers').where('lease_until', '<=', NOW).returning('id').execute()
  for (const { id } of ended) await requeue(tx, id)
  return ended.map((row) => row.id)
}

async function requeue(tx: Writer, worker_id: string): Promise<void> {
  await deleteReservationsOfWorker(tx, worker_id)
  await deleteRows(tx, 'lane_reports', { worker_id }).execute()
  await deleteRows(tx, 'worker_reports', { worker_id }).execute()
  const free = { state: 'ready' as const, worker_id: null }
  await updateRows(tx, 'chunks', { worker_id, state: 'leased' })
    .set({ ...free, parked_reason: null })
    .execute()
  await updateRows(tx, 'tasks', { worker_id, state: 'leased' }).set(free).execute()
}

/** The state of a worker and its model servers, reported every few seconds; deleted with the session. */
export interface WorkerReport extends Pick<WorkerStatus, 'open_chunks' | 'stores_failing' | 'upstreams'> {
  /** The share of live servers left for lines, from 0 to 1, by clock hour (Unix ms) since the worker's start. */
  live_hours?: [at: number, left: number][]
  /** The only batches that a command's worker answers; absent: all. */
  only_batches?: string[]
}

export async function setWorkerReport(
  tx: Writer,
  worker_id: string,
  report: WorkerReport,
  now: number,
): Promise<void> {
  const row = { worker_id, reported_at: now, report: JSON.stringify(report) }
  await putRows(tx, 'worker_reports', [row], ['reported_at', 'report'])
}

/** Adds the servers' work since the last report, and deletes hours older than a day. */
export async function addServerHours(tx: Writer, rows: readonly ServerHourRow[], now: number): Promise<void> {
  if (rows.length === 0) return
  await addRows(tx, 'server_hours', rows, ['answered', 'answered_ms', 'missed', 'missed_ms'])
  await tx
    .deleteFrom('server_hours')
    .where('hour', '<=', now - DAY_MS)
    .execute()
}

/** The work of model servers by model, server and clock hour. */
export async function listServerHours(db: Reader, now: number): Promise<ServerHourRow[]> {
  const rows = db
    .selectFrom('server_hours')
    .selectAll()
    .where('hour', '>', now - DAY_MS)
  return await rows.orderBy('model').orderBy('upstream').orderBy('hour').execute()
}

/** A worker with a valid session. */
interface LiveWorker {
  id: string
  /** The start of the worker, Unix ms. */
  started: number
  /** The time of the last report; null before the first. */
  reported_at: number | null
  report: WorkerReport | null
}

/** The live workers in the order of their starts. */
export async function listLiveWorkers(db: Reader): Promise<LiveWorker[]> {
  const rows = await db
    .selectFrom('workers')
    .leftJoin('worker_reports', 'worker_reports.worker_id', 'workers.id')
    .select(['workers.id', 'started', 'reported_at', 'report'])
    .where('role', '=', 'worker')
    .where('lease_until', '>', NOW)
    .orderBy('workers.id')
    .execute()
  return rows.map(({ report, ...worker }) => ({
    ...worker,
    report: report === null ? null : JSON.parse(report),
  }))
}

function isOfCommand(report: WorkerReport | null): report is WorkerReport & { only_batches: string[] } {
  return report?.only_batches !== undefined
}

/** The age up to which a batch may be missing in its worker's report. */
const REPORTED_MS = 10_000

/**
 * The models of each running worker but `own`, with the names of their upstreams, by the last reports. Workers of
 * commands are excluded unless they answer `batch` at `now` (Unix ms).
 */
export async function modelsOfWorkers(
  db: Reader,
  { own, batch, now = 0 }: { own?: string; batch?: Pick<BatchRow, 'id' | 'created'>; now?: number } = {},
): Promise<Map<string, Set<string>>[]> {
  const isNew = batch !== undefined && Math.abs(now - batch.created) <= REPORTED_MS
  const answers = (report: WorkerReport | null): boolean =>
    isNew || !isOfCommand(report) || (batch !== undefined && report.only_batches.includes(batch.id))
  const others = (await listLiveWorkers(db)).filter(({ id, report }) => id !== own && answers(report))
  return others.map(({ report }) => {
    const models = Map.groupBy(report?.upstreams ?? [], ({ model }) => model)
    return new Map([...models].map(([model, some]) => [model, new Set(some.map(({ upstream }) => upstream))]))
  })
}

// The models that a worker cannot send lines to, and since when. A row exists only while there is a problem, and is
// deleted with the session that reported it.

/** The last errors of a model's servers, and the affected batches. */
export interface UpstreamErrors {
  /** The reason for which no server is reachable, or up, in words for callers; else null. */
  reason: string | null
  /** The last error of lines by batch ID, for the batch's owner. */
  batches: Readonly<Record<string, string>>
  /** The last error with the server's full message, for operators. */
  last_error: string | null
  /** Whether lines of other batches are not sent either. */
  isOpen: boolean
}

/**
 * A model that a worker sends no lines to. `starting`: its servers run on demand, and none is up (`reason` says why);
 * `unavailable`: no server is reachable; `live_traffic`: other requests take them all; `throttled`: servers asked to
 * wait; `failing`: they fail on lines of the named batches.
 */
export type LaneReport = Pick<LaneReportRow, 'model' | 'state' | 'since'> & UpstreamErrors

/** The time without renewal after which a worker does not count as running. */
const STALE_MS = 4_500

export async function setLaneReports(
  tx: Writer,
  worker_id: string,
  laneReports: readonly LaneReport[],
): Promise<void> {
  await deleteRows(tx, 'lane_reports', { worker_id }).execute()
  const rows = laneReports.map(({ model, state, since, ...details }) => {
    return { worker_id, model, state, since, details: JSON.stringify(details) }
  })
  await insertRows(tx, 'lane_reports', rows)
}

/** The reports of workers with a valid lease, oldest first. */
export async function listLaneReports(db: Reader): Promise<LaneReport[]> {
  const rows = await db
    .selectFrom('lane_reports')
    .innerJoin('workers', 'workers.id', 'lane_reports.worker_id')
    .select(['model', 'state', 'since', 'details'])
    .where('lease_until', '>', NOW)
    .orderBy('since')
    .execute()
  return rows.map(({ details, ...report }) => ({ ...NO_DETAILS, ...report, ...JSON.parse(details ?? '{}') }))
}

/** The given models that another worker with a valid lease, not of a command, has and reports as available. */
export async function reachableByOthers(
  db: Reader,
  worker_id: string,
  models: readonly string[],
): Promise<string[]> {
  const others = (await listLiveWorkers(db)).filter(
    ({ id, report }) => id !== worker_id && !isOfCommand(report),
  )
  const reports = await selectRows(db, 'lane_reports', { state: 'unavailable', model: models })
    .select(['worker_id', 'model'])
    .execute()
  const reported = new Set(reports.map(({ worker_id, model }) => `${worker_id} ${model}`))
  const has = (report: WorkerReport | null, model: string): boolean =>
    report === null || report.upstreams.some((one) => one.model === model)
  return models.filter((model) =>
    others.some(({ id, report }) => has(report, model) && !reported.has(`${id} ${model}`)),
  )
}

/** The details of a report without any. */
const NO_DETAILS: UpstreamErrors = { reason: null, batches: {}, last_error: null, isOpen: true }

/** Whether any worker has a session that was renewed lately. */
export async function hasWorker(db: Reader): Promise<boolean> {
  const live = selectRows(db, 'workers', { role: 'worker' }).where('lease_until', '>', NOW)
  const renewed = live.where((eb) =>
    eb.or([
      eb('lease_ms', 'is', null),
      eb(eb('lease_until', '-', eb.ref('lease_ms')), '>', eb(NOW, '-', STALE_MS)),
    ]),
  )
  return await findsRow(renewed.select('id'))
}

// The amount of work, counted for metrics. A partial index over unfinished rows serves each count, so the cost does not
// grow with finished work.

export const OPEN_CHUNK_STATES = ['ready', 'leased', 'parked'] as const

export interface WorkCounts {
  /** The number of batches that have not ended, by status; absent: none. */
  batches: ReadonlyMap<BatchStatus, number>
  /** The nearest end of an unfinished batch's window, Unix ms. */
  nearest_deadline: number | null
  chunks: Record<(typeof OPEN_CHUNK_STATES)[number], number>
  /** The number of parked chunks by their reason. */
  parked: ReadonlyMap<string, number>
  /** The number of worker processes with a valid lease. */
  workers: number
  tasks_due: ReadonlyMap<TaskKind, number>
  blobs_pending_deletion: number
}

export async function readWorkCounts(db: Reader, now: number): Promise<WorkCounts> {
  const batches = await selectRows(db, 'batches', { status: OPEN_STATUSES })
    .select(['status', db.fn.countAll().as('count'), db.fn.min('expires_at').as('nearest')])
    .groupBy('status')
    .execute()
  const parked = await selectRows(db, 'chunks', { state: 'parked' })
    .select(['parked_reason', db.fn.countAll().as('count')])
    .groupBy('parked_reason')
    .execute()
  const { count: workers } = await selectRows(db, 'workers', { role: 'worker' })
    .select(db.fn.countAll().as('count'))
    .where('lease_until', '>', now)
    .executeTakeFirstOrThrow()
  const tasks = await selectRows(db, 'tasks', { state: 'ready' })
    .select(['kind', db.fn.countAll().as('count')])
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
      ready: await countRows(db, 'chunks', { state: 'ready' }),
      leased: await countRows(db, 'chunks', { state: 'leased' }),
      parked: await countRows(db, 'chunks', { state: 'parked' }),
    },
    parked: new Map(parked.map((row) => [row.parked_reason ?? 'unknown', Number(row.count)])),
    workers: Number(workers),
    tasks_due: new Map(tasks.map((row) => [row.kind, Number(row.count)])),
    blobs_pending_deletion: Number(pendingDeletion),
  }
}
