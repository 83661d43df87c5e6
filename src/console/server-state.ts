// How a model server does, in a word.
import type { UpstreamStatus } from '../wire/status.ts'

export type ServerState = 'healthy' | 'recovering' | 'down' | 'outsideHours' | 'starting' | 'unknown'

/** A server that was sent nothing of late may be healthy or not: that is not known. */
export function serverState(
  {
    circuit,
    hours,
    latency_ms,
    errors_per_s,
  }: Pick<UpstreamStatus, 'circuit' | 'hours' | 'latency_ms' | 'errors_per_s'>,
  isStarting: boolean,
): ServerState {
  if (isStarting) return 'starting'
  if (circuit === 'open') return 'down'
  if (errors_per_s > 0) return 'recovering'
  if (hours?.places === 0) return 'outsideHours'
  return latency_ms === null ? 'unknown' : 'healthy'
}
