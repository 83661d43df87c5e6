// How many worker processes `serve` starts, and what each may do of what is configured for all.
import { availableParallelism } from 'node:os'
import type { Config } from '../config/config.ts'

/** One process sends more lines a second than most model servers answer together; the API has cores to itself, too. */
const CORES_EACH = 4
const AUTO_MAX = 4

/**
 * `auto` is one for every four cores, at least one and at most four, and never more than may be in flight at
 * the upstream that takes the fewest.
 */
export function workerCount(config: Config, cores: number = availableParallelism()): number {
  const { processes } = config.worker
  if (processes !== 'auto') return processes
  const upstreams = config.models.flatMap((model) => model.upstreams)
  const slots = Math.min(config.worker.concurrency_max, ...upstreams.map((one) => one.concurrency_max))
  return Math.max(1, Math.min(AUTO_MAX, slots, Math.floor(cores / CORES_EACH)))
}

/**
 * The configuration of each of `count` workers: what bounds lines in flight and memory is shared out, so that
 * all of them together keep to it.
 */
export function shareOf(config: Config, count: number): Config {
  if (count === 1) return config
  const share = (whole: number): number => Math.max(1, Math.ceil(whole / count))
  return {
    ...config,
    worker: {
      ...config.worker,
      concurrency_max: share(config.worker.concurrency_max),
      memory_bytes: share(config.worker.memory_bytes),
    },
    models: config.models.map((model) => ({
      ...model,
      upstreams: model.upstreams.map((upstream) => ({
        ...upstream,
        concurrency_max: share(upstream.concurrency_max),
      })),
    })),
  }
}
