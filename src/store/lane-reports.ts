// Which models a worker cannot send lines to just now, and since when. A row exists only while there is
// trouble, and no longer than the session that reported it: a service that runs well has none.
import type { LaneReportRow } from './schema.ts'
import type { ClaimSql, Reader, Writer } from './store.ts'

export type LaneTrouble = Pick<LaneReportRow, 'model' | 'state' | 'since'>

/** What a worker reports from now on, in place of what it reported before. */
export async function setLaneReports(
  tx: Writer,
  worker_id: string,
  troubles: readonly LaneTrouble[],
): Promise<void> {
  await dropLaneReports(tx, worker_id)
  if (troubles.length === 0) return
  await tx
    .insertInto('lane_reports')
    .values(troubles.map((trouble) => ({ ...trouble, worker_id })))
    .execute()
}

/** The session has ended. */
export async function dropLaneReports(tx: Writer, worker_id: string): Promise<void> {
  await tx.deleteFrom('lane_reports').where('worker_id', '=', worker_id).execute()
}

/** What workers whose session lives report, earliest trouble first. */
export async function listLaneReports(db: Reader, sql: ClaimSql): Promise<LaneTrouble[]> {
  return await db
    .selectFrom('lane_reports')
    .innerJoin('workers', 'workers.id', 'lane_reports.worker_id')
    .select(['model', 'state', 'since'])
    .where('lease_until', '>', sql.now)
    .orderBy('since')
    .execute()
}

/** Whether any worker holds a session. */
export async function hasWorker(db: Reader, sql: ClaimSql): Promise<boolean> {
  const row = await db
    .selectFrom('workers')
    .select('id')
    .where('role', '=', 'worker')
    .where('lease_until', '>', sql.now)
    .limit(1)
    .execute()
  return row.length > 0
}
