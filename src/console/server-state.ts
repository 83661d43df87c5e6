// Names the state of a model server in one word.
import type { UpstreamStatus } from '../wire/status.ts'

export type ServerState = 'healthy' | 'recovering' | 'down' | 'outsideHours' | 'starting' | 'unknown'

/** A server without requests whose list of models shows nothing is of unknown health. */
export function serverState(
  {
    circuit,
    hours,
    latency_ms,
    errors_per_s,
    reachable,
  }: Pick<UpstreamStatus, 'circuit' | 'hours' | 'latency_ms' | 'errors_per_s' | 'reachable'>,
  isStarting: boolean,
): ServerState {
  if (isStarting) return 'starting'
  // Lines open the circuit; a server that is back has had none yet.
  if (circuit === 'open') return reachable ? 'recovering' : 'down'
  if (errors_per_s > 0) return 'recovering'
  if (hours?.places === 0) return 'outsideHours'
  if (reachable === false) return 'down'
  return reachable || latency_ms !== null ? 'healthy' : 'unknown'
}
