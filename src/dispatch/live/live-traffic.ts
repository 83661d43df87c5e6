// Reads the metrics of model servers with live traffic, from which their live shares follow. Every worker does so; the
// reports of the other workers say which requests are theirs.
import type { Clock } from '../../domain/clock.ts'
import type { WorkerReport } from '../../store/workers.ts'
import type { Lane } from '../lane.ts'
import type { ModelServer } from '../upstream.ts'
import type { Others } from './live-server.ts'

/** How old the other workers' reports may be. */
const REPORTS_MS = 2_000

interface LiveTrafficOptions {
  clock: Clock
  lanes: ReadonlyMap<string, Lane>
  /** The reports of the other workers. */
  reports: () => Promise<WorkerReport[]>
}

interface Place {
  model: string
  upstream: ModelServer
}

export class LiveTraffic {
  readonly #options: LiveTrafficOptions
  #reports: WorkerReport[] = []
  #reportsAt = Number.NEGATIVE_INFINITY

  constructor(options: LiveTrafficOptions) {
    this.#options = options
  }

  /** To be called a few times a second: shares rise between the readings. Whether there are such servers. */
  async tick(): Promise<boolean> {
    const { clock, lanes } = this.#options
    const servers = Map.groupBy(this.#places(), ({ upstream }) => upstream.live!)
    if (servers.size === 0) return false
    const now = clock.now()
    const isWanted = (places: readonly Place[]): boolean =>
      places.some(({ model }) => (lanes.get(model)?.waiting ?? 0) > 0)
    const due = [...servers].filter(([server, places]) =>
      server.isDue(now, server.inFlight > 0 || isWanted(places)),
    )
    if (due.length > 0) await this.#refreshReports(now)
    await Promise.all(
      due.map(([server, places]) => {
        const { backend } = places[0]!.upstream
        const others = this.#othersAt(places)
        return server.read(backend.readTraffic?.bind(backend), others, () => clock.now())
      }),
    )
    return true
  }

  #places(): Place[] {
    return [...this.#options.lanes].flatMap(([model, { route }]) =>
      route.servers.filter(({ live }) => live !== null).map((upstream) => ({ model, upstream })),
    )
  }

  async #refreshReports(now: number): Promise<void> {
    if (now - this.#reportsAt < REPORTS_MS) return
    this.#reportsAt = now
    this.#reports = await this.#options.reports()
  }

  #othersAt(places: readonly Place[]): Others {
    const inFlight = this.#reports.map(({ upstreams }) =>
      upstreams
        .filter((one) => places.some((at) => at.model === one.model && at.upstream.name === one.upstream))
        .reduce((sum, one) => sum + one.in_flight, 0),
    )
    return {
      inFlight: inFlight.reduce((sum, count) => sum + count, 0),
      workers: inFlight.filter((count) => count > 0).length,
    }
  }
}
