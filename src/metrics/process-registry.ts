// What a process measures, on one page with what other processes send over: the API shows the metrics of the
// workers beside it.
import { AggregatorRegistry, collectDefaultMetrics, Registry } from 'prom-client'

export type Metrics = Awaited<ReturnType<Registry['getMetricsAsJSON']>>

export class ProcessRegistry extends Registry {
  readonly #others: () => Promise<Metrics[]>

  /** `others` is asked each time somebody looks; those that cannot answer are left out. */
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
