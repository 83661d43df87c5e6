// The maintenance tasks that every worker runs about once a second: requeue the work of expired sessions, make parked
// chunks ready when their time has come, delete files that have ended, end uploads past their `expires_at`, and delete
// the bytes of blobs whose keys are destroyed.

import type { SealedBlobs } from '../blobs/sealed.ts'
import type { Clock } from '../domain/clock.ts'
import { mapAhead } from '../domain/project-queue.ts'
import { removeExpiredFile } from '../lifecycle/remove-file.ts'
import { forgetBlobs, listPendingDeletion } from '../store/blobs.ts'
import { forgetHttpRequests, forgetIdempotencyKeys } from '../store/calls.ts'
import { wakeParked } from '../store/chunks.ts'
import { listExpiredFiles } from '../store/files.ts'
import { forgetRemoteBatches } from '../store/remote-batches.ts'
import { pullBackTimes } from '../store/shared-clock.ts'
import { type Ports, type Store, untilFewer } from '../store/store.ts'
import { maintenanceDue } from '../store/tasks.ts'
import { endUpload, listExpiredUploads } from '../store/uploads.ts'
import { requeueExpiredLeases } from '../store/workers.ts'

const FILES_AT_ONCE_MAX = 100
const BLOBS_AT_ONCE_MAX = 500
const DELETES_AT_ONCE = 16
const ROWS_AT_ONCE = 500

type MaintenanceDeps = Pick<Ports, 'store' | 'sealed' | 'clock'>

/** The time by which the clock may run back without wrong timing. */
const SET_BACK_MS_MIN = 1_000

/** Detects that the clock was set back, in this process or while it did not run. */
export class ClockSetBack {
  #seen = Number.POSITIVE_INFINITY

  /** Checks the clock. Returns the number of stored times that lay too far ahead (store/shared-clock.ts). */
  async check({ store, clock }: Pick<MaintenanceDeps, 'store' | 'clock'>): Promise<number> {
    const now = clock.now()
    const isBack = now < this.#seen - SET_BACK_MS_MIN
    this.#seen = now
    return isBack ? await store.write((tx) => pullBackTimes(tx)) : 0
  }
}

interface MaintenanceReport {
  /** IDs of worker sessions that expired. */
  rescued: string[]
}

export async function runMaintenance({ store, sealed, clock }: MaintenanceDeps): Promise<MaintenanceReport> {
  const now = clock.now()
  const due = await maintenanceDue(store.read, now)
  const rescued =
    due.sessions || due.parked
      ? await store.write(async (tx) => {
          const ended = await requeueExpiredLeases(tx)
          await wakeParked(tx)
          return ended
        })
      : []
  if (due.files)
    for (const id of await listExpiredFiles(store.read, now, FILES_AT_ONCE_MAX))
      await store.write((tx) => removeExpiredFile(tx, id, now))
  if (due.uploads)
    for (const { id } of await listExpiredUploads(store.read, now, FILES_AT_ONCE_MAX))
      await store.write((tx) => endUpload(tx, id, { status: 'expired', file_id: null }, now))
  if (due.blobs || due.files || due.uploads) await deletePendingBlobs(store, sealed)
  return { rescued }
}

/** Deletes the bytes of blobs whose keys were destroyed. */
export async function deletePendingBlobs(store: Store, sealed: SealedBlobs): Promise<void> {
  for (;;) {
    const keys = await listPendingDeletion(store.read, BLOBS_AT_ONCE_MAX)
    if (keys.length === 0) return
    for await (const _ of mapAhead(keys, DELETES_AT_ONCE, (key) => sealed.delete(key)));
    await store.write((tx) => forgetBlobs(tx, keys))
  }
}

/** Deletes the records of HTTP calls made before `before` (Unix ms). */
export async function deleteOldCalls(store: Store, before: number): Promise<void> {
  await untilFewer(ROWS_AT_ONCE, () => store.write((tx) => forgetHttpRequests(tx, before, ROWS_AT_ONCE)))
}

export async function deleteExpiredIdempotencyKeys(store: Store, clock: Clock): Promise<void> {
  const now = clock.now()
  await untilFewer(ROWS_AT_ONCE, () => store.write((tx) => forgetIdempotencyKeys(tx, now, ROWS_AT_ONCE)))
}

/** Deletes the rows of remote batches whose results are deleted here. */
export async function deleteOldRemoteBatches(store: Store): Promise<void> {
  await untilFewer(ROWS_AT_ONCE, () => store.write((tx) => forgetRemoteBatches(tx, ROWS_AT_ONCE)))
}
