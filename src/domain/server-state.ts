// Determines the state of a model server, and the reason for which it does not answer more lines.
export type ServerState =
  | 'healthy'
  | 'throttled'
  | 'recovering'
  | 'down'
  | 'outsideHours'
  | 'starting'
  | 'unknown'

interface ReportedHealth {
  circuit: 'closed' | 'open'
  /** The hours of the server. `places`: the limit of lines, until that time (Unix seconds). */
  hours?: { places: number; until: number | null } | null
  /** The latency of recent answers in ms; null without any. */
  latency_ms: number | null
  errors_per_s: number
  /** Whether the server is reachable; null: unknown. */
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

/** The state of a server: unknown without requests and a list of models; healthy if the server asks to wait. */
export function serverState(
  { circuit, hours, latency_ms, errors_per_s, reachable, last_error }: ReportedHealth,
  isStarting: boolean,
): ServerState {
  if (isStarting) return 'starting'
  const fails = circuit === 'open' || errors_per_s > 0
  if (fails && reachable !== false && /^429\b/.test(last_error ?? '')) return 'throttled'
  // The circuit closes with a line's answer, so a reachable server recovers until then.
  if (circuit === 'open') return reachable ? 'recovering' : 'down'
  if (errors_per_s > 0) return 'recovering'
  if (hours?.places === 0) return 'outsideHours'
  if (reachable === false) return 'down'
  return reachable || latency_ms !== null ? 'healthy' : 'unknown'
}

/** The model servers of a service, with the reports of all workers added up. */
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

/** Values that are added up over workers. */
const SUMS = ['in_flight', 'concurrency', 'concurrency_max', 'lines_per_s', 'errors_per_s'] as const

/** The sum of two workers' reports; other values are those of the worker with more lines at the server. */
function added<R extends ReportedServer>(a: R, b: R): R {
  const sums = SUMS.map((name) => [name, a[name] + b[name]])
  return { ...(a.lines_per_s >= b.lines_per_s ? a : b), ...Object.fromEntries(sums) }
}

/** The factor by which a slow server takes longer than the fastest server of its model. */
const SLOW = 2

/** The reason for which a server answers no more lines: its state, load or latency; null if it has free slots. */
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
