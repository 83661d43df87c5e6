// Decides how long a batch at a batch API is waited for. Each has one deadline, which every call about it obeys, whatever
// the batch API says or leaves unsaid: the end of the window of its lines, or sooner once it is to be cancelled.
//
//   created ─────────── recallAt ────────── lastCallAt ─── expires_at
//                       it is cancelled if  it is cancelled, so that what it has
//                       servers may answer  answered is read within the window
//                       its lines at once
//
// Only a batch whose reported progress lets it end in time is left alone at both.
import type { SeenBatch } from '../../../backends/batch-api/batch-api.ts'
import { Alarm, type Clock } from '../../../domain/clock.ts'
import type { RemoteBatchRow } from '../../../store/schema.ts'
import type { Run } from '../../run.ts'

export interface Window {
  created: number
  expires_at: number
}

const RECALL_SHARE = 0.1
/** The larger share of a short window that is kept for the other servers. */
const RECALL_MS_MIN = 60_000
const RECALL_SHARE_MAX = 1 / 3
const CANCEL_SHARE = 0.05
const CANCEL_SHARE_MAX = 1 / 6
const CANCEL_MS_MIN = 2_000
const CANCEL_MS_MAX = 15 * 60_000

/** The time at which lines of a remote batch are called back, if servers may answer them (Unix ms). */
export function recallAt({ created, expires_at }: Window): number {
  const windowMs = expires_at - created
  const keptMs = Math.max(windowMs * RECALL_SHARE, Math.min(RECALL_MS_MIN, windowMs * RECALL_SHARE_MAX))
  return Math.round(expires_at - keptMs)
}

/** The time at which a remote batch is cancelled even if no server may answer its lines (Unix ms). */
export function lastCallAt(window: Window): number {
  return Math.round(window.expires_at - cancelMs(window))
}

/** The time in ms for the cancellation of a remote batch and the reading of its results, before it is given up. */
export function cancelMs({ created, expires_at }: Window): number {
  const windowMs = expires_at - created
  const leastMs = Math.min(CANCEL_MS_MIN, windowMs * CANCEL_SHARE_MAX)
  return Math.min(CANCEL_MS_MAX, Math.max(leastMs, windowMs * CANCEL_SHARE))
}

/** The time at which a remote batch is given up, whatever is known of it (Unix ms). */
export function deadlineOf({ cancelled_at }: Pick<RemoteBatchRow, 'cancelled_at'>, window: Window): number {
  return Math.min(
    window.expires_at,
    cancelled_at === null ? Number.POSITIVE_INFINITY : cancelled_at + cancelMs(window),
  )
}

/** The time of the next decision about a remote batch, whether the batch API answers or not (Unix ms). */
export function nextMark(
  row: Pick<RemoteBatchRow, 'cancelled_at'>,
  window: Window,
  now: number,
): number | null {
  const marks = [recallAt(window), lastCallAt(window), deadlineOf(row, window)]
  return marks.sort((a, b) => a - b).find((at) => at > now) ?? null
}

/** Whether a batch that continues at its rate since `from` ends in good time. */
export function isOnTime(seen: Pick<SeenBatch, 'done'>, from: number, window: Window, now: number): boolean {
  if (seen.done <= 0 || now <= from) return false
  return from + (now - from) / seen.done < (now + window.expires_at) / 2
}

/** A signal that aborts when calls about a remote batch are no longer worth an answer. */
export interface Until {
  readonly signal: AbortSignal
  /** Whether the signal aborted at the deadline, rather than with the worker or the lease. */
  readonly isOver: () => boolean
  close(): void
}

/**
 * Watches the deadline of a remote batch of an open run. Calls that last longer than a cancellation may take end when servers
 * may answer its lines (`mayReplace`). `stop`: of the worker, which leaves the batch to the next one.
 */
export function untilDeadline(
  run: Run,
  row: RemoteBatchRow,
  clock: Clock,
  mayReplace: () => boolean,
  stop: AbortSignal,
): Until {
  const controller = new AbortController()
  const alarm = new Alarm(clock, () => check())
  const lateAt = Math.max(clock.now() + cancelMs(run.batch), recallAt(run.batch))
  const isOver = (): boolean => {
    const now = clock.now()
    return now >= deadlineOf(row, run.batch) || (now >= lateAt && mayReplace())
  }
  const check = (): void => {
    const isLeft = run.isClosed || run.stopped === 'lost' || stop.aborted
    if (run.stopped !== null && run.stopped !== 'lost' && run.stopped !== 'drained')
      row.cancelled_at ??= clock.now()
    if (isLeft || isOver()) controller.abort()
    else {
      const at = deadlineOf(row, run.batch)
      alarm.set(clock.now() < lateAt ? Math.min(at, lateAt) : at)
    }
  }
  run.watchers.add(check)
  stop.addEventListener('abort', check)
  check()
  return {
    signal: controller.signal,
    isOver,
    close() {
      alarm.set(Number.POSITIVE_INFINITY)
      run.watchers.delete(check)
      stop.removeEventListener('abort', check)
    },
  }
}
