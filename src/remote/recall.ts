// Decides when lines are called back from a batch API that may answer them too late, and how long their batch there may
// take to be cancelled. A batch API is given nine tenths of the window; after that, servers that answer at once get the
// remaining lines, if there are any. Only a batch whose reported progress lets it end in time is not called back.
import type { SeenBatch } from '../backends/batch-api/batch-api.ts'

interface Window {
  created: number
  expires_at: number
}

const RECALL_SHARE = 0.1
/** Of a short window, a larger share is kept for the other servers. */
const RECALL_MS_MIN = 60_000
const RECALL_SHARE_MAX = 1 / 3
const CANCEL_SHARE = 0.05
const CANCEL_MS_MIN = 2_000
const CANCEL_MS_MAX = 15 * 60_000

/** When the lines of a remote batch are called back (Unix ms). */
export function recallAt({ created, expires_at }: Window): number {
  const windowMs = expires_at - created
  const keptMs = Math.max(windowMs * RECALL_SHARE, Math.min(RECALL_MS_MIN, windowMs * RECALL_SHARE_MAX))
  return Math.round(expires_at - keptMs)
}

/** How long a batch may take to be cancelled there before it is given up (ms). */
export function cancelMs({ created, expires_at }: Window): number {
  return Math.min(CANCEL_MS_MAX, Math.max(CANCEL_MS_MIN, (expires_at - created) * CANCEL_SHARE))
}

/** Whether a batch that continues at its rate since `from` ends in good time. */
export function isOnTime(seen: Pick<SeenBatch, 'done'>, from: number, window: Window, now: number): boolean {
  if (seen.done <= 0 || now <= from) return false
  return from + (now - from) / seen.done < (now + window.expires_at) / 2
}
