// What came of a line that a batch API had, for the rules of retries.
import type { BackendResult } from '../../backends/backend.ts'
import type { Blame } from './retry-policy.ts'
import type { Upstream } from './upstream.ts'

export interface RemoteEnd {
  upstream: Upstream
  result: BackendResult
  /** Since when the batch API had it (Unix ms). */
  at: number
  /** Its batch there. */
  remote_batch?: string
  blame: Blame
  /** Whether it is to be sent there again: the batch API never had it. */
  stays: boolean
  /** In [0, 1), equal for lines that are to be sent again together. */
  draw: number
}
