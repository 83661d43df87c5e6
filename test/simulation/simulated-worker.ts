// The worker of a machine, with the upstreams, tasks and maintenance that a process would give it.
import { ResponseMemory } from '../../src/backends/response-memory.ts'
import type { MasterKey } from '../../src/blobs/master-key.ts'
import { sealBlobs } from '../../src/blobs/sealed.ts'
import type { Log } from '../../src/domain/log.ts'
import { planBatch } from '../../src/intake/plan.ts'
import { runMaintenance } from '../../src/maintenance/maintenance.ts'
import { OrphanSweep, type SweepPace } from '../../src/maintenance/sweep.ts'
import { Worker } from '../../src/worker/worker.ts'
import type { Machine } from './machine.ts'
import { SIM_MODELS } from './run.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { Servers } from './servers.ts'

const DAY_MS = 86_400_000
const LEASE_MS = 2_000
const FLUSH_MS = 100
/** Where lines cost more than estimated: long enough that costs must count before a flush. */
const FLUSH_MS_UNDERESTIMATED = 3_000
/** Longer than any clock skew. */
export const ORPHAN_AGE_MS = 20_000
export const SWEEP: SweepPace = {
  orphanAgeMs: ORPHAN_AGE_MS,
  everyMs: 4_000,
  askEveryMs: 1_000,
  // Clock skew shortens it.
  secondLookMs: 7_000,
}
const RULES = { file_retention_ms: () => 90 * DAY_MS }

export interface SimulatedWorker {
  worker: Worker
  /** Takes up other upstreams. */
  reload: () => void
}

export interface SimulatedWorkerOptions {
  machine: Machine
  master: MasterKey
  random: SeededRandom
  servers: Servers
  underestimates: boolean
  log: Log
}

export function startWorker(options: SimulatedWorkerOptions): SimulatedWorker {
  const { machine, master, random, servers, underestimates, log } = options
  const sealed = sealBlobs(machine.blobs, master)
  const { clock } = machine
  const gpus = servers.budget(clock)
  const models = new Map(SIM_MODELS.map((model) => [model.id, model]))
  const sweep = new OrphanSweep({ store: machine.store, blobs: machine.blobs, clock }, SWEEP)
  const memory_bytes = random.pick([1, 3_000, 1_000_000])
  const spills = servers.spills()
  let upstreams = servers.configure(machine, gpus, log)
  const worker = new Worker({
    store: machine.store,
    sealed,
    clock,
    steadyClock: machine.steadyClock,
    log,
    random: random.next,
    models,
    upstreams,
    spills,
    retry: {
      attempts_max: 4,
      backoff_min_ms: 20,
      backoff_max_ms: 400,
      outage_patience_ms: 1_000,
      throttled_attempts_max: 12,
      throttled_share: 0.5,
    },
    rules: RULES,
    leaseMs: LEASE_MS,
    drainMs: 500,
    flushIntervalMs: underestimates ? FLUSH_MS_UNDERESTIMATED : FLUSH_MS,
    memoryBytes: memory_bytes,
    answers: new ResponseMemory(memory_bytes),
    blobFreshMs: ORPHAN_AGE_MS / 10,
    tasks: {
      plan: (task, signal) =>
        planBatch(
          { store: machine.store, sealed, clock, models, plans: new Map(), rules: RULES },
          task,
          signal,
        ),
    },
    async maintenance() {
      await runMaintenance({ store: machine.store, sealed, clock })
      await sweep.tick()
    },
  })
  // A worker that cannot open its session exits, as its process would.
  worker.start().catch(() => machine.crash())
  const reload = (): void => {
    const before = [...upstreams.values()].flat()
    upstreams = servers.configure(machine, gpus, log, upstreams)
    worker.setUpstreams(upstreams, spills)
    const kept = [...upstreams.values()].flat()
    for (const upstream of before) if (!kept.includes(upstream)) upstream.retire()
  }
  return { worker, reload }
}
