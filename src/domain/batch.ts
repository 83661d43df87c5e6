// The life of a batch, as one table. docs/state-machine.md draws the same table and a test holds the two
// together. Nothing else in the code decides whether a batch may move.

export const BATCH_STATUSES = [
  'validating',
  'failed',
  'queued',
  'in_progress',
  'completed',
  'expired',
  'cancelling',
  'cancelled',
] as const

export type BatchStatus = (typeof BATCH_STATUSES)[number]

/** From each status, the statuses it may move to. */
export const BATCH_TRANSITIONS: Record<BatchStatus, readonly BatchStatus[]> = {
  validating: ['queued', 'failed', 'cancelling', 'expired'],
  queued: ['in_progress', 'cancelling', 'expired'],
  in_progress: ['completed', 'cancelling', 'expired'],
  cancelling: ['cancelled'],
  completed: [],
  failed: [],
  expired: [],
  cancelled: [],
}

export function canTransition(from: BatchStatus, to: BatchStatus): boolean {
  return BATCH_TRANSITIONS[from].includes(to)
}

/** The statuses from which `to` may be entered: the guard of the SQL that moves a batch. */
export function statusesBefore(to: BatchStatus): BatchStatus[] {
  return BATCH_STATUSES.filter((from) => canTransition(from, to))
}

/** A terminal status is never left. */
export function isTerminal(status: BatchStatus): boolean {
  return BATCH_TRANSITIONS[status].length === 0
}

/** The statuses of a batch that has not ended. */
export const OPEN_STATUSES: readonly BatchStatus[] = BATCH_STATUSES.filter((status) => !isTerminal(status))

/** What an accepted cancel does: `move` to cancelling, show the `same` object again, or refuse. */
export function cancelOutcome(status: BatchStatus): 'move' | 'same' | 'refuse' {
  if (canTransition(status, 'cancelling')) return 'move'
  return status === 'cancelling' || status === 'cancelled' ? 'same' : 'refuse'
}

/** Why lines of a batch are no longer sent; each is the error code those lines end with. */
export type StopReason = 'batch_expired' | 'batch_cancelled' | 'input_file_deleted'

/** Why nothing more of this batch is to be sent; null while there is no reason. */
export function stopReason(
  batch: { status: BatchStatus; input_deleted_at: number | null; expires_at: number },
  now: number,
): StopReason | null {
  if (now >= batch.expires_at) return 'batch_expired'
  if (batch.status === 'cancelling') return 'batch_cancelled'
  return batch.input_deleted_at === null ? null : 'input_file_deleted'
}

/** What the last sealed chunk makes of its batch. `unfinished` counts lines that ended as batch_expired. */
export function finalStatus(status: BatchStatus, unfinished: number): 'completed' | 'cancelled' | 'expired' {
  if (status === 'cancelling') return 'cancelled'
  return unfinished > 0 ? 'expired' : 'completed'
}
