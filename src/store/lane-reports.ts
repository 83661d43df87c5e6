// The models that a worker cannot send lines to, and since when. A row exists only while there is a problem, and is
// deleted with the session that reported it.
import type { LaneReportRow } from './schema.ts'
import type { ClaimSql, Reader, Writer } from './store.ts'

/** The last errors of a model's servers, and the batches that met them. */
export interface UpstreamErrors {
  /** If no server is reachable, or up: the reason, in words that anybody may read. */
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
  await dropLaneReports(tx, worker_id)
  if (laneReports.length === 0) return
  await tx
    .insertInto('lane_reports')
    .values(
      laneReports.map(({ model, state, since, ...details }) => ({
        worker_id,
        model,
        state,
        since,
        details: JSON.stringify(details),
      })),
    )
    .execute()
}

/** Deletes the reports of a session that has ended. */
export async function dropLaneReports(tx: Writer, worker_id: string): Promise<void> {
  await tx.deleteFrom('lane_reports').where('worker_id', '=', worker_id).execute()
}

/** The reports of workers with a valid lease, oldest first. */
export async function listLaneReports(db: Reader, claimSql: ClaimSql): Promise<LaneReport[]> {
  const rows = await db
    .selectFrom('lane_reports')
    .innerJoin('workers', 'workers.id', 'lane_reports.worker_id')
    .select(['model', 'state', 'since', 'details'])
    .where('lease_until', '>', claimSql.now)
    .orderBy('since')
    .execute()
  return rows.map(({ details, ...report }) => ({ ...NO_DETAILS, ...report, ...JSON.parse(details ?? '{}') }))
}

/** Those of these models that another worker with a valid lease does not report as unavailable. */
export async function reachableByOthers(
  db: Reader,
  claimSql: ClaimSql,
  worker_id: string,
  models: readonly string[],
): Promise<string[]> {
  const others = await db
    .selectFrom('workers')
    .select('id')
    .where('role', '=', 'worker')
    .where('id', '!=', worker_id)
    .where('lease_until', '>', claimSql.now)
    .execute()
  const reports = await db
    .selectFrom('lane_reports')
    .select(['worker_id', 'model'])
    .where('state', '=', 'unavailable')
    .where('model', 'in', models)
    .execute()
  const reported = new Set(reports.map(({ worker_id, model }) => `${worker_id} ${model}`))
  return models.filter((model) => others.some(({ id }) => !reported.has(`${id} ${model}`)))
}

/** For reports of earlier versions. */
const NO_DETAILS: UpstreamErrors = { reason: null, batches: {}, last_error: null, isOpen: true }

/** Whether any worker holds a session, and has renewed it lately. */
export async function hasWorker(db: Reader, claimSql: ClaimSql): Promise<boolean> {
  const row = await db
    .selectFrom('workers')
    .select('id')
    .where('role', '=', 'worker')
    .where('lease_until', '>', claimSql.now)
    .where((eb) =>
      eb.or([
        eb('lease_ms', 'is', null),
        eb(eb('lease_until', '-', eb.ref('lease_ms')), '>', eb(claimSql.now, '-', STALE_MS)),
      ]),
    )
    .limit(1)
    .execute()
  return row.length > 0
}
