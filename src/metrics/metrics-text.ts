// Prints the metrics of a registry as text. This queries the database and the workers, so it happens at most once a
// second however many scrapers ask, and never twice at once.
import { AggregatorRegistry, collectDefaultMetrics, Histogram, Registry } from 'prom-client'
import type { Clock } from '../domain/clock.ts'

const KEPT_MS = 1_000

export class MetricsText {
  readonly #registry: Registry
  readonly #clock: Clock
  /** The last text; `at` is null while it is being made. */
  #made: { at: number | null; text: Promise<string> } | null = null

  constructor(registry: Registry, clock: Clock) {
    this.#registry = registry
    this.#clock = clock
  }

  get contentType(): string {
    return this.#registry.contentType
  }

  /** The text, at most a second old. A failure is cached as long. */
  read(): Promise<string> {
    if (this.#made && (this.#made.at === null || this.#isFresh(this.#made.at))) return this.#made.text
    const made: { at: number | null; text: Promise<string> } = { at: null, text: this.#registry.metrics() }
    this.#made = made
    const end = (): void => {
      made.at = this.#clock.now()
    }
    made.text.then(end, end)
    return made.text
  }

  #isFresh(at: number): boolean {
    const age = this.#clock.now() - at
    // After the clock was set back, the text counts as old.
    return age >= 0 && age < KEPT_MS
  }
}

// The metrics of a process on one page with those that other processes send: the API shows the metrics of the
// workers beside it.

export type Metrics = Awaited<ReturnType<Registry['getMetricsAsJSON']>>

export class ProcessRegistry extends Registry {
  readonly #others: () => Promise<Metrics[]>

  /** Makes a page of metrics. `others` is called for each page; processes that cannot answer are omitted. */
  constructor(process: 'api' | 'worker', others: () => Promise<Metrics[]> = async () => []) {
    super()
    this.#others = others
    collectDefaultMetrics({ register: this, labels: { process } })
  }

  override async metrics(): Promise<string> {
    const [own, others] = await Promise.all([this.getMetricsAsJSON(), this.#others()])
    return await AggregatorRegistry.aggregate([own, ...others]).metrics()
  }
}

// Call metrics: their number, status and duration by endpoint.

const BUCKETS_S = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60]

type ObserveCall = (call: { method: string; route: string; status: number; duration_ms: number }) => void

export function httpMetrics(registry: Registry): ObserveCall {
  const durations = new Histogram({
    name: 'offpeak_http_request_duration_seconds',
    help: 'How long HTTP calls took, from their headers to the end of their answer.',
    labelNames: ['method', 'route', 'status'],
    buckets: BUCKETS_S,
    registers: [registry],
  })
  return ({ method, route, status, duration_ms }) =>
    durations.observe({ method, route, status }, duration_ms / 1000)
}
