// Names the state of a model server in one word, and what keeps it from answering more.
export type ServerState =
  | 'healthy'
  | 'throttled'
  | 'recovering'
  | 'down'
  | 'outsideHours'
  | 'starting'
  | 'unknown'

/** The health of a server, as a worker reports it. */
interface ReportedHealth {
  circuit: 'closed' | 'open'
  /** `places`: the most lines that its hours allow just now, until then (Unix seconds). */
  hours?: { places: number; until: number | null } | null
  /** Null when nothing was answered of late. */
  latency_ms: number | null
  errors_per_s: number
  /** Null: not known. */
  reachable?: boolean | null
  last_error?: string | null
}

interface ReportedServer extends ReportedHealth {
  model: string
  upstream: string
  in_flight: number
  concurrency: number
  concurrency_max: number
  lines_per_s: number
}

interface Reports<R> {
  workers: readonly { upstreams: readonly R[] }[]
  models: readonly { model: string; state: string }[]
}

/** A server without requests whose list of models shows nothing is of unknown health. One that asks to wait is not ill. */
export function serverState(
  { circuit, hours, latency_ms, errors_per_s, reachable, last_error }: ReportedHealth,
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

/** The model servers of a service, each as all workers together see it. */
export function serversOf<R extends ReportedServer>({
  workers,
  models,
}: Reports<R>): (R & { state: ServerState })[] {
  const servers = new Map<string, R>()
  for (const one of workers.flatMap(({ upstreams }) => upstreams)) {
    const key = `${one.model} ${one.upstream}`
    const other = servers.get(key)
    servers.set(key, other ? added(other, one) : one)
  }
  const isStarting = (name: string): boolean =>
    models.some(({ model, state }) => model === name && state === 'starting')
  return [...servers.values()].map((one) => ({ ...one, state: serverState(one, isStarting(one.model)) }))
}

/** Each worker has its own part of them. */
const SUMS = ['in_flight', 'concurrency', 'concurrency_max', 'lines_per_s', 'errors_per_s'] as const

/** Values that are no sums are those of the worker that has more lines there. */
function added<R extends ReportedServer>(a: R, b: R): R {
  const sums = SUMS.map((name) => [name, a[name] + b[name]])
  return { ...(a.lines_per_s >= b.lines_per_s ? a : b), ...Object.fromEntries(sums) }
}

/** So many times slower than the fastest server of its model, one is slow. */
const SLOW = 2

/** Why a server does not answer more lines: its state, or how full and how slow it is; null where it has room. */
export function heldBackBy(
  server: Pick<ReportedServer, 'in_flight' | 'concurrency' | 'concurrency_max' | 'latency_ms'> & {
    state: ServerState
  },
  others: readonly Pick<ReportedServer, 'latency_ms'>[],
): ServerState | 'configured' | 'found' | 'slow' | null {
  const { state, in_flight, concurrency, concurrency_max, latency_ms } = server
  if (state !== 'healthy' && state !== 'unknown') return state
  const fastest = Math.min(...others.map(({ latency_ms }) => latency_ms ?? Number.POSITIVE_INFINITY))
  if (in_flight >= concurrency_max) return 'configured'
  if (in_flight < concurrency) return null
  return latency_ms !== null && latency_ms >= fastest * SLOW ? 'slow' : 'found'
}
