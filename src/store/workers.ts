// The sessions of workers, which are the one lease mechanism, and the workers' reports: their own state, the state of
// their model servers, and the amount of work.
//
// A worker opens a session and renews it. Everything that it has claimed, chunks and tasks, is leased as long as its
// session, so a renewal updates one row. Only the database's clock decides when a session expires. Its chunks and tasks
// are then requeued, and the next claim raises their epoch: commits that name the old epoch change nothing.
import { type BatchStatus, OPEN_STATUSES } from '../domain/batch.ts'
import { DAY_MS } from '../domain/days.ts'
import { newId } from '../domain/ids.ts'
import { deleteReservationsOfWorker } from './ledger.ts'
import {
  addRows,
  changesRow,
  countRows,
  deleteRows,
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

/** False if the session has ended: its leases are lost, and the worker must open another session. */
export async function renewSession(tx: Writer, worker_id: string, lease_ms: number): Promise<boolean> {
  return await changesRow(
    updateRows(tx, 'workers', { id: worker_id })
      .set((eb) => ({ lease_until: eb(NOW, '+', lease_ms), lease_ms }))
      .where('lease_until', '>', NOW),
  )
}

/**
 * Locks a session until the end of the transaction, so that it cannot expire meanwhile; false if it has ended. Claims
 * under an ended session would never be requeued.
 */
export async function lockSession(tx: Writer, worker_id: string): Promise<boolean> {
  const row = await selectRows(tx, 'workers', { id: worker_id })
    .select('id')
    .where('lease_until', '>', NOW)
    .forKeyShare()
    .executeTakeFirst()
  return row !== undefined
}

/** The chunks that are leased to a worker, as far as the database knows. */
export async function leasedChunks(
  db: Reader,
  worker_id: string,
): Promise<Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch'>[]> {
  return await selectRows(db, 'chunks', { worker_id, state: 'leased' })
    .select(['batch_id', 'idx', 'epoch'])
    .execute()
}

/** The same for tasks. */
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

/** The number of open sessions but `own`, and when the last one expires if none is renewed (ms from now). */
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

/**
 * How workers and their model servers do, as they report every few seconds. A row goes with the session it is of.
 */
export interface UpstreamReport {
  model: string
  upstream: string
  in_flight: number
  concurrency: number
  concurrency_max: number
  circuit: 'closed' | 'open'
  lines_per_s: number
  latency_ms: number | null
  errors_per_s: number
  last_error: string | null
  /** Whether it is up, by its lines or its list of models; null: not known. */
  reachable?: boolean | null
  tier?: number
  /** `until` in Unix seconds. */
  hours?: { places: number; until: number | null } | null
  /** The live share of a server that answers other requests too; absent: it does not. */
  live?: LiveReport
}

/** The traffic of a server, and how many lines it may have; null: it does not say. */
export interface LiveReport {
  share: number
  running: number | null
  waiting: number | null
  cache: number | null
}

export interface WorkerReport {
  open_chunks: number
  stores_failing: boolean
  upstreams: UpstreamReport[]
  /** By hour of the clock (Unix ms), since the worker started: what others left for lines of live servers, from 0 to 1. */
  live_hours?: [at: number, left: number][]
  /** The batches that the worker of one command answers; absent: all. */
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

/** Adds what servers did since the last report, and forgets what is older than a day. */
export async function addServerHours(tx: Writer, rows: readonly ServerHourRow[], now: number): Promise<void> {
  if (rows.length === 0) return
  await addRows(tx, 'server_hours', rows, ['answered', 'answered_ms', 'missed', 'missed_ms'])
  await tx
    .deleteFrom('server_hours')
    .where('hour', '<=', now - DAY_MS)
    .execute()
}

/** By model, server and hour. */
export async function listServerHours(db: Reader, now: number): Promise<ServerHourRow[]> {
  const rows = db
    .selectFrom('server_hours')
    .selectAll()
    .where('hour', '>', now - DAY_MS)
  return await rows.orderBy('model').orderBy('upstream').orderBy('hour').execute()
}

/** A worker whose session lives. */
interface LiveWorker {
  id: string
  /** Unix ms. */
  started: number
  /** Null until its first report. */
  reported_at: number | null
  report: WorkerReport | null
}

/** The live workers, the one that started first at the head. */
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

/** A batch that is younger may be missing in the report of the worker that answers it. */
const REPORTED_MS = 10_000

/**
 * The models of each running worker but `own`, each with the names of its upstreams, as it reported last. Without the
 * workers of commands, unless they answer `batch` at `now` (Unix ms).
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

/** The last errors of a model's servers, and the batches that met them. */
export interface UpstreamErrors {
  /** If no server is reachable, or up: the reason, in words for callers. */
  reason: string | null
  /** By batch ID: the last error of its lines, for their owner. */
  batches: Readonly<Record<string, string>>
  /** With all that the server said: for operators. */
  last_error: string | null
  /** Whether the lines of other batches are not sent either. */
  isOpen: boolean
}

/**
 * `starting`: its servers run on demand, and none is up (`reason` says why); `unavailable`: no server is reachable;
 * `live_traffic`: other requests take all of its servers; `throttled`: the servers asked to wait; `failing`: they fail on lines of the named batches.
 */
export type LaneReport = Pick<LaneReportRow, 'model' | 'state' | 'since'> & UpstreamErrors

/** A worker that has not renewed its lease for this long does not count as running. */
const STALE_MS = 4_500

/** Replaces the reports of a worker. */
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

/** The ones among these models that another worker with a valid lease has, of no command, and does not report as unavailable. */
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

/** Whether any worker holds a session, and has renewed it lately. */
export async function hasWorker(db: Reader): Promise<boolean> {
  const row = await selectRows(db, 'workers', { role: 'worker' })
    .select('id')
    .where('lease_until', '>', NOW)
    .where((eb) =>
      eb.or([
        eb('lease_ms', 'is', null),
        eb(eb('lease_until', '-', eb.ref('lease_ms')), '>', eb(NOW, '-', STALE_MS)),
      ]),
    )
    .limit(1)
    .execute()
  return row.length > 0
}

// How much there is to do, counted for metrics. Each count is served by a partial index over what is unfinished,
// so it costs the same however much has been done before.

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
