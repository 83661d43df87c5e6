// One page of metrics for several processes: what this one measures, and what the worker beside it sends over.
import { AggregatorRegistry, collectDefaultMetrics, Registry } from 'prom-client'

export type Metrics = Awaited<ReturnType<Registry['getMetricsAsJSON']>>

/** A registry that measures its process as such: CPU, memory, event loop, garbage collection. */
export function processRegistry(process: 'api' | 'worker'): Registry {
  return measured(new Registry(), process)
}

/** `others` is asked each time somebody looks; null while there is nothing to add. */
export function mergedRegistry(process: 'api', others: () => Promise<Metrics | null>): Registry {
  return measured(new MergedRegistry(others), process)
}

function measured<R extends Registry>(registry: R, process: string): R {
  collectDefaultMetrics({ register: registry, labels: { process } })
  return registry
}

class MergedRegistry extends Registry {
  readonly #others: () => Promise<Metrics | null>

  constructor(others: () => Promise<Metrics | null>) {
    super()
    this.#others = others
  }

  override async metrics(): Promise<string> {
    const [own, others] = await Promise.all([this.getMetricsAsJSON(), this.#others()])
    return await AggregatorRegistry.aggregate(others === null ? [own] : [own, others]).metrics()
  }
}
