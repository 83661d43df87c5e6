// How workers and their model servers do, as they report every few seconds. A row goes with the session it is of.
import type { ClaimSql, Reader, Writer } from './store.ts'

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
  /** Missing in reports of earlier versions. */
  tier?: number
  /** `until` in Unix seconds. */
  hours?: { places: number; until: number | null } | null
  /** Of a server that answers other requests too; absent: it does not, or an earlier version reported. */
  live?: LiveReport
}

/** What a server is seen to do, and how many lines it may have; null: it does not say. */
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
}

export async function setWorkerReport(
  tx: Writer,
  worker_id: string,
  report: WorkerReport,
  now: number,
): Promise<void> {
  const row = { reported_at: now, report: JSON.stringify(report) }
  await tx
    .insertInto('worker_reports')
    .values({ worker_id, ...row })
    .onConflict((conflict) => conflict.column('worker_id').doUpdateSet(row))
    .execute()
}

/** The session has ended. */
export async function dropWorkerReport(tx: Writer, worker_id: string): Promise<void> {
  await tx.deleteFrom('worker_reports').where('worker_id', '=', worker_id).execute()
}

/** A worker whose session lives. */
export interface LiveWorker {
  id: string
  /** Unix ms. */
  started: number
  /** Null until its first report. */
  reported_at: number | null
  report: WorkerReport | null
}

/** Those that started first, first. */
export async function listLiveWorkers(db: Reader, claimSql: ClaimSql): Promise<LiveWorker[]> {
  const rows = await db
    .selectFrom('workers')
    .leftJoin('worker_reports', 'worker_reports.worker_id', 'workers.id')
    .select(['workers.id', 'started', 'reported_at', 'report'])
    .where('role', '=', 'worker')
    .where('lease_until', '>', claimSql.now)
    .orderBy('workers.id')
    .execute()
  return rows.map(({ report, ...worker }) => ({
    ...worker,
    report: report === null ? null : JSON.parse(report),
  }))
}
