// The worker of a machine, with the upstreams, tasks and maintenance that a process would give it.
import { announceLines } from '../../src/audit/announce-lines.ts'
import { ResponseMemory } from '../../src/backends/response-memory.ts'
import type { MasterKey } from '../../src/blobs/master-key.ts'
import { sealBlobs } from '../../src/blobs/sealed.ts'
import type { Log } from '../../src/domain/log.ts'
import { fetchInput } from '../../src/intake/fetch-input.ts'
import { validateFile } from '../../src/intake/file-index.ts'
import { planBatch } from '../../src/intake/plan.ts'
import { runMaintenance } from '../../src/maintenance/maintenance.ts'
import { OrphanSweep, type SweepPace } from '../../src/maintenance/sweep.ts'
import { finishTask } from '../../src/store/tasks.ts'
import { Worker } from '../../src/worker/worker.ts'
import { answerChecks } from '../fakes/answer-checks.ts'
import type { Machine } from './machine.ts'
import { GROUP_LINES_MIN, RULES, SEALING, SIM_PLAN } from './run.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { MachineServers } from './servers.ts'

const LEASE_MS = 2_000
const openBucket = (): never => {
  throw new Error('no input is in a bucket')
}
const FLUSH_MS = 100
/** Where lines cost more than estimated: long enough that costs must count before a flush. */
const FLUSH_MS_UNDERESTIMATED = 3_000
/** Longer than any clock skew. */
export const ORPHAN_AGE_MS = 20_000
/** The age up to which blobs may be committed. */
export const BLOB_FRESH_MS = ORPHAN_AGE_MS / 10
export const SWEEP: SweepPace = {
  orphanAgeMs: ORPHAN_AGE_MS,
  everyMs: 4_000,
  askEveryMs: 1_000,
  // Longer than the age of a blob whose transaction begins, a stall of the database, and a transaction that is late.
  secondLookMs: 12_000,
}
const MEMORY_BYTES = [1, 3_000, 1_000_000]
const LIMITS = { lines_max: 10_000, line_bytes_max: 10_000 }

export interface SimulatedWorker {
  worker: Worker
  /** Takes up what is configured now. */
  reload: () => void
}

/** What a configuration says of servers. */
export interface WorkerServers {
  of: (
    machine: Machine,
    log: Log,
    memory: ResponseMemory,
  ) => Pick<MachineServers, 'models' | 'upstreams' | 'spills' | 'reload'>
  patienceMs: number
}

export interface SimulatedWorkerOptions {
  machine: Machine
  master: MasterKey
  random: SeededRandom
  servers: WorkerServers
  underestimates: boolean
  /** Whether many lines of one model wait, for which a worker needs memory. */
  isCrowded: boolean
  log: Log
}

export function startWorker(options: SimulatedWorkerOptions): SimulatedWorker {
  const { machine, master, random, servers, underestimates, isCrowded, log } = options
  const { store, clock } = machine
  const sealed = sealBlobs(machine.blobs, master, SEALING)
  const sweep = new OrphanSweep({ store, blobs: machine.blobs, clock }, SWEEP)
  const drawn = random.pick(MEMORY_BYTES)
  const memoryBytes = isCrowded ? Math.max(...MEMORY_BYTES) : drawn
  const answers = new ResponseMemory(memoryBytes)
  const configured = servers.of(machine, log, answers)
  const { models } = configured
  const plans = new Map([[SIM_PLAN.name, SIM_PLAN]])
  const planned = { models, plans, rules: RULES, groupLinesMin: GROUP_LINES_MIN }
  const worker = new Worker({
    store,
    sealed,
    clock,
    log,
    random: random.next,
    models,
    upstreams: configured.upstreams,
    spills: configured.spills,
    retry: {
      attempts_max: 4,
      backoff_min_ms: 20,
      backoff_max_ms: 400,
      outage_patience_ms: servers.patienceMs,
      throttled_attempts_max: 12,
      throttled_share: 0.5,
    },
    rules: RULES,
    leaseMs: LEASE_MS,
    drainMs: 500,
    flushIntervalMs: underestimates ? FLUSH_MS_UNDERESTIMATED : FLUSH_MS,
    memoryBytes,
    answers,
    checks: answerChecks(clock, () => random.int(1, 60)),
    blobFreshMs: BLOB_FRESH_MS,
    tasks: {
      validate: (task, signal) => validateFile({ store, sealed, clock, limits: LIMITS }, task, signal),
      make: (task, signal) =>
        fetchInput({ store, sealed, clock, plans, openBucket, file_bytes_max: 1e9 }, task, signal),
      announce: (task) => announceLines({ store, sealed, clock }, task),
      deliver: (task) => store.write(async (tx) => void (await finishTask(tx, task))),
      plan: (task, signal) => planBatch({ store, sealed, clock, ...planned }, task, signal),
    },
    async maintenance() {
      await runMaintenance({ store, sealed, clock })
      await sweep.tick()
    },
  })
  // A worker that cannot open its session exits, as its process would.
  worker.start().catch(() => machine.crash())
  const reload = (): void => {
    const unused = configured.reload()
    worker.setUpstreams(configured.upstreams, configured.spills)
    for (const upstream of unused) upstream.retire()
  }
  return { worker, reload }
}
