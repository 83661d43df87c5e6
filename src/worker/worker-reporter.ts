// Reports to the database how this worker and its model servers do, for GET /v1/status: what one process has to tell
// another is a row. A worker that has nothing to do and nothing new to tell writes nothing.
import { reasonForOperator } from '../backends/failure-reason.ts'
import type { Lane } from '../dispatch/lane.ts'
import type { LiveServer } from '../dispatch/live/live-server.ts'
import type { Observer } from '../dispatch/observer.ts'
import { ModelServer, type Upstream } from '../dispatch/upstream.ts'
import { type Clock, unixSeconds } from '../domain/clock.ts'
import type { Store } from '../store/store.ts'
import { type LiveReport, setWorkerReport, type UpstreamReport, type WorkerReport } from '../store/workers.ts'

const ERROR_LENGTH_MAX = 300

interface WorkerReporterOptions {
  store: Pick<Store, 'writeAsyncCommit'>
  clock: Clock
  sessionId: () => string
  lanes: ReadonlyMap<string, Pick<Lane, 'upstreams'>>
  status: () => { openChunks: number; storesFailing: boolean }
}

/** What an upstream did since the last report. */
interface Attempts {
  answered: number
  missed: number
  latencyMs: number
}

export class WorkerReporter {
  readonly #options: WorkerReporterOptions
  #attempts = new Map<Upstream, Attempts>()
  #since: number
  #reported = ''

  constructor(options: WorkerReporterOptions) {
    this.#options = options
    this.#since = options.clock.now()
  }

  /** To be told of every attempt. */
  attempted: Observer['attempted'] = (upstream, result, durationMs) => {
    let attempts = this.#attempts.get(upstream)
    if (!attempts) {
      attempts = { answered: 0, missed: 0, latencyMs: 0 }
      this.#attempts.set(upstream, attempts)
    }
    if (result === 'answered' || result === 'refused') {
      attempts.answered++
      attempts.latencyMs += durationMs
    } else if (result !== 'aborted') attempts.missed++
  }

  /** To be called every few seconds. */
  async report(): Promise<void> {
    const { store, clock, sessionId } = this.#options
    const now = clock.now()
    const report = this.#report(now, Math.max(1, now - this.#since) / 1000)
    this.#attempts = new Map()
    this.#since = now
    const worker_id = sessionId()
    const text = `${worker_id} ${JSON.stringify(report)}`
    if (text === this.#reported) return
    await store.writeAsyncCommit((tx) => setWorkerReport(tx, worker_id, report, now))
    this.#reported = text
  }

  #report(now: number, seconds: number): WorkerReport {
    const { lanes, status } = this.#options
    const { openChunks, storesFailing } = status()
    const upstreams = [...lanes].flatMap(([model, lane]) =>
      lane.upstreams.map((upstream) => this.#upstream(model, upstream, now, seconds)),
    )
    return { open_chunks: openChunks, stores_failing: storesFailing, upstreams }
  }

  #upstream(model: string, upstream: Upstream, now: number, seconds: number): UpstreamReport {
    const { limit, circuit, name } = upstream
    const live = upstream instanceof ModelServer ? upstream.live : null
    const opening = upstream.openingAt(now)
    const error = [...circuit.errors.values()].at(-1)
    const { answered, missed, latencyMs } = this.#attempts.get(upstream) ?? NO_ATTEMPTS
    return {
      model,
      upstream: name,
      in_flight: limit.inFlight,
      concurrency: limit.limit,
      concurrency_max: limit.max,
      circuit: circuit.open ? 'open' : 'closed',
      lines_per_s: rounded(answered / seconds),
      latency_ms: answered === 0 ? null : rounded(latencyMs / answered),
      errors_per_s: rounded(missed / seconds),
      tier: upstream.tier,
      hours: opening && { ...opening, until: opening.until === null ? null : unixSeconds(opening.until) },
      last_error: error === undefined ? null : reasonForOperator(error).slice(0, ERROR_LENGTH_MAX),
      ...(live && { live: liveReport(live) }),
    }
  }
}

function liveReport({ share, traffic }: LiveServer): LiveReport {
  const { running = null, waiting = null, cache = null } = traffic ?? {}
  return { share: share.current, running, waiting, cache: cache === null ? null : rounded(cache) }
}

const NO_ATTEMPTS: Attempts = { answered: 0, missed: 0, latencyMs: 0 }

function rounded(value: number): number {
  return Math.round(value * 100) / 100
}
