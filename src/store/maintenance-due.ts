// Whether a maintenance task is due: one query for all tasks, because every worker asks every second and the answer is
// nearly always no.
import { sql } from 'kysely'
import type { ClaimSql, Reader } from './store.ts'

export interface MaintenanceDue {
  /** Sessions whose lease has run out. */
  sessions: boolean
  /** Parked chunks whose time has come. */
  parked: boolean
  /** Files past their retention. */
  files: boolean
  /** Uploads that were not completed in time. */
  uploads: boolean
  /** Blobs pending deletion. */
  blobs: boolean
}

/** States are written into the statement, so that the partial indexes serve it. */
export async function maintenanceDue(
  db: Reader,
  { now: leaseNow }: ClaimSql,
  now: number,
): Promise<MaintenanceDue> {
  const due = await db
    .selectNoFrom(({ exists, selectFrom }) => [
      exists(selectFrom('workers').select('id').where('lease_until', '<=', leaseNow)).as('sessions'),
      exists(
        selectFrom('chunks')
          .select('idx')
          .where('state', '=', sql.lit('parked' as const))
          .where('run_at', '<=', leaseNow),
      ).as('parked'),
      exists(
        selectFrom('files').select('id').where('deleted_at', 'is', null).where('expires_at', '<=', now),
      ).as('files'),
      exists(
        selectFrom('uploads')
          .select('id')
          .where('status', '=', sql.lit('pending' as const))
          .where('expires_at', '<=', now),
      ).as('uploads'),
      exists(selectFrom('blobs').select('key').where('deletion_pending_since', 'is not', null)).as('blobs'),
    ])
    .executeTakeFirstOrThrow()
  return {
    sessions: Boolean(due.sessions),
    parked: Boolean(due.parked),
    files: Boolean(due.files),
    uploads: Boolean(due.uploads),
    blobs: Boolean(due.blobs),
  }
}
