// Which models a worker cannot send lines to just now, and since when. A row exists only while there is
// trouble, and no longer than the session that reported it: a service that runs well has none.
import type { LaneReportRow } from './schema.ts'
import type { ClaimSql, Reader, Writer } from './store.ts'

/** What the servers of a model said last, and to whom. */
export interface UpstreamErrors {
  /** Where nobody answers at all: why not. */
  error: string | null
  /** By ID of a batch whose lines get no answer: what was said of the last one. */
  batches: Readonly<Record<string, string>>
  /** Whether that keeps the lines of other batches back as well. */
  isOpen: boolean
}

/**
 * `starting`: its servers run on demand, and none is up (`error` says why not); `unavailable`: nobody is there; `throttled`: the servers have asked to wait; `failing`: they fail on lines of the
 * batches that are named.
 */
export type LaneReport = Pick<LaneReportRow, 'model' | 'state' | 'since'> & UpstreamErrors

/** A worker that has not renewed its lease for so long does nothing just now. */
const SILENT_MS = 4_500

/** What a worker reports from now on, in place of what it reported before. */
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
      laneReports.map(({ model, state, since, error, batches, isOpen }) => ({
        worker_id,
        model,
        state,
        since,
        details: JSON.stringify({ error, batches, isOpen }),
      })),
    )
    .execute()
}

/** The session has ended. */
export async function dropLaneReports(tx: Writer, worker_id: string): Promise<void> {
  await tx.deleteFrom('lane_reports').where('worker_id', '=', worker_id).execute()
}

/** What workers whose session lives report, earliest trouble first. */
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

/** Of a worker of an earlier version. */
const NO_DETAILS: UpstreamErrors = { error: null, batches: {}, isOpen: true }

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
        eb(eb('lease_until', '-', eb.ref('lease_ms')), '>', eb(claimSql.now, '-', SILENT_MS)),
      ]),
    )
    .limit(1)
    .execute()
  return row.length > 0
}
