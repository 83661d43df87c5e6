// How many worker processes `serve` starts, and the share of the configured bounds that each gets.
import { availableParallelism } from 'node:os'
import type { Config } from '../config/config.ts'

/** One process sends more lines per second than most model servers answer, and the API needs cores, too. */
const CORES_EACH = 4
const AUTO_MAX = 4

/**
 * `auto` is one for every four cores, at least one, at most four, and at most the smallest `concurrency_max` of an
 * upstream; one where servers are started on demand.
 */
export function workerCount(config: Config, cores: number = availableParallelism()): number {
  const { processes } = config.worker
  if (processes !== 'auto') return processes
  const upstreams = config.models.flatMap((model) => model.upstreams)
  // Each process would start its own.
  if (upstreams.some((one) => one.type === 'openai' && one.engine !== null)) return 1
  const slots = Math.min(config.worker.concurrency_max, ...upstreams.map((one) => one.concurrency_max))
  return Math.max(1, Math.min(AUTO_MAX, slots, Math.floor(cores / CORES_EACH)))
}

/**
 * The configuration of each of `count` workers: the bounds of lines in flight and of memory are divided between
 * them.
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
        hours: upstream.hours.map((window) => ({
          ...window,
          concurrency_max: window.concurrency_max && share(window.concurrency_max),
        })),
      })),
    })),
  }
}
