// Names the state of a model server in one word, and what keeps it from answering more.
import type { ServiceStatus, UpstreamStatus } from '../wire/status.ts'

export type ServerState =
  | 'healthy'
  | 'throttled'
  | 'recovering'
  | 'down'
  | 'outsideHours'
  | 'starting'
  | 'unknown'

type Fields = Pick<UpstreamStatus, 'circuit' | 'hours' | 'latency_ms' | 'errors_per_s' | 'reachable'> &
  Partial<Pick<UpstreamStatus, 'last_error'>>

/** A server without requests whose list of models shows nothing is of unknown health. One that asks to wait is not ill. */
export function serverState(
  { circuit, hours, latency_ms, errors_per_s, reachable, last_error }: Fields,
  isStarting: boolean,
): ServerState {
  if (isStarting) return 'starting'
  const fails = circuit === 'open' || errors_per_s > 0
  if (fails && reachable !== false && /^429\b/.test(last_error ?? '')) return 'throttled'
  // Lines open the circuit; a server that is back has had none yet.
  if (circuit === 'open') return reachable ? 'recovering' : 'down'
  if (errors_per_s > 0) return 'recovering'
  if (hours?.places === 0) return 'outsideHours'
  if (reachable === false) return 'down'
  return reachable || latency_ms !== null ? 'healthy' : 'unknown'
}

export type Service = NonNullable<ServiceStatus['service']>

/** A model server as all workers together see it. */
export type Server = UpstreamStatus & { state: ServerState }

export function serversOf({ workers, models }: Service): Server[] {
  const servers = new Map<string, UpstreamStatus>()
  for (const one of workers.flatMap(({ upstreams }) => upstreams)) {
    const key = `${one.model} ${one.upstream}`
    const other = servers.get(key)
    servers.set(key, other ? added(other, one) : one)
  }
  const isStarting = (name: string): boolean =>
    models.some(({ model, state }) => model === name && state === 'starting')
  return [...servers.values()].map((one) => ({ ...one, state: serverState(one, isStarting(one.model)) }))
}

const SUMS = ['in_flight', 'concurrency', 'lines_per_s', 'errors_per_s'] as const

/** What is no sum is as the worker that has more lines there sees it. */
function added(a: UpstreamStatus, b: UpstreamStatus): UpstreamStatus {
  const sums = SUMS.map((name) => [name, a[name] + b[name]])
  return { ...(a.lines_per_s >= b.lines_per_s ? a : b), ...Object.fromEntries(sums) }
}

export function serversDown(service: Service): Server[] {
  return serversOf(service).filter(({ state }) => state === 'down')
}

/** So many times slower than the fastest server of its model, one is slow. */
const SLOW = 2

/** Why a server does not answer more lines: its state, or how full and how slow it is; null where it has room. */
export function heldBackBy(
  server: Server,
  others: readonly Server[],
): ServerState | 'configured' | 'found' | 'slow' | null {
  const { state, in_flight, concurrency, concurrency_max, latency_ms } = server
  if (state !== 'healthy' && state !== 'unknown') return state
  const fastest = Math.min(...others.map(({ latency_ms }) => latency_ms ?? Number.POSITIVE_INFINITY))
  if (in_flight >= concurrency_max) return 'configured'
  if (in_flight < concurrency) return null
  return latency_ms !== null && latency_ms >= fastest * SLOW ? 'slow' : 'found'
}
