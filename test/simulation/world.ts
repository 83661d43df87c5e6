// One simulated run: machines with workers, a model server, a database and a blob store, with faults drawn from one
// seed. The database is real; the other ports are fakes, and time is virtual. Once the faults end, the machines must
// finish every batch.
import { randomBytes } from 'node:crypto'
import { copyFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Backend } from '../../src/backends/backend.ts'
import { batchApiBackend } from '../../src/backends/openai/batch-api-backend.ts'
import { ResponseMemory } from '../../src/backends/response-memory.ts'
import { masterKeyFromText } from '../../src/blobs/master-key.ts'
import { type SealedBlobs, sealBlobs } from '../../src/blobs/sealed.ts'
import type { Spill } from '../../src/dispatch/send/tiers.ts'
import { Upstream } from '../../src/dispatch/send/upstream.ts'
import { Worker } from '../../src/dispatch/worker.ts'
import { isTerminal } from '../../src/domain/batch.ts'
import { newId } from '../../src/domain/ids.ts'
import type { Log } from '../../src/domain/log.ts'
import type { Model } from '../../src/domain/model.ts'
import { costNanos } from '../../src/domain/money.ts'
import { Machine as Budget } from '../../src/engines/machine.ts'
import { planBatch } from '../../src/intake/plan.ts'
import type { FileIndex } from '../../src/jsonl/file-index.ts'
import { cancelBatch } from '../../src/lifecycle/cancel-batch.ts'
import { setBatchPaused } from '../../src/lifecycle/pause-batch.ts'
import { removeFile } from '../../src/lifecycle/remove-file.ts'
import { runMaintenance } from '../../src/maintenance/maintenance.ts'
import { OrphanSweep, type SweepPace } from '../../src/maintenance/sweep.ts'
import { insertBatch, readBatchRow } from '../../src/store/batches.ts'
import { insertBlobs } from '../../src/store/blob-rows.ts'
import { insertFile, readFileRow } from '../../src/store/files.ts'
import { ensureProject } from '../../src/store/projects.ts'
import type { BatchRow } from '../../src/store/schema.ts'
import { sqliteStore } from '../../src/store/sqlite/store.ts'
import type { Store, Writer } from '../../src/store/store.ts'
import { insertTask } from '../../src/store/tasks.ts'
import { type TestClock, testClock } from '../fakes/clock.ts'
import { Caps } from './caps.ts'
import { InvariantChecker } from './invariant-checker.ts'
import { ledgerViolations } from './ledger-violations.ts'
import { Machine, POISON, type StoreFaults } from './machine.ts'
import { memoryBlobs } from './memory-blobs.ts'
import { ModelServer, type ServerFaults } from './model-server.ts'
import { RemoteBatchApi } from './remote-batch-api.ts'
import { resultLines } from './result-lines.ts'
import { type SeededRandom, seededRandom } from './seeded-random.ts'
import { simulatedEngine } from './simulated-engine.ts'
import { Tally } from './tally.ts'
import { UpstreamChanges, VISITS } from './upstream-changes.ts'

/** The random part of IDs does not come from the seed; only the order of IDs matters, and that follows time. */
const RANDOM_PART_OF_IDS = /[0-9a-z]{26}/g
const START = Date.UTC(2026, 0, 15, 3)
const MONTH_END = Date.UTC(2026, 1, 1)
const LEASE_MS = 2_000
const FLUSH_MS = 100
/** Where lines cost more than estimated: long enough that costs must count before a flush. */
const FLUSH_MS_UNDERESTIMATED = 3_000
/** Longer than any clock skew. */
const ORPHAN_AGE_MS = 20_000
const SWEEP: SweepPace = {
  orphanAgeMs: ORPHAN_AGE_MS,
  everyMs: 4_000,
  askEveryMs: 1_000,
  // Clock skew shortens it.
  secondLookMs: 7_000,
}
const STEP_MS = 250
/** Steps with faults between two reconciliations. */
const RECONCILE_EVERY = 20
/** Long, because always-throttled lines are retried one by one, and again by each worker that claims the chunk. */
const RECOVERY_MS_MAX = 600_000
const STOP_MS_MAX = 30_000
const TOKENS_MEAN = 50
const DAY_MS = 86_400_000

const NO_STORE_FAULTS: StoreFaults = {
  failsBefore: 0,
  answerLost: 0,
  stalls: 0,
  late: 0,
  crashes: 0,
  stepMsMax: 2,
  isFull: false,
}
const NO_SERVER_FAULTS: ServerFaults = {
  timeouts: 0,
  resets: 0,
  malformed: 0,
  duplicates: 0,
  throttles: 0,
  usageMissing: 0,
}

const REMOTE_SPILL = { whenDownMs: 500, whenAtRisk: true }

export const SIM_MODEL: Model = {
  id: 'm',
  context_window: null,
  max_output_tokens: 100,
  price: { input_picos: 1_000_000, output_picos: 10_000_000 },
  priced: true,
  supports: { structured_output: true, tools: true },
  endpoints: ['/v1/chat/completions'],
  created: 0,
}

/** Two models of one price; the lines of one chunk name either. */
const SIM_MODELS: readonly Model[] = [SIM_MODEL, { ...SIM_MODEL, id: 'n' }]

export interface PlannedBatch {
  id: string
  name: string
  project_id: string
  /** The texts of the lines in order; each is also the custom_id. */
  lines: string[]
  expires_at: number
  /** Its result lines, read before its files were deleted; null while the files exist. */
  read: { outputs: string[]; errors: string[] } | null
}

export interface SimulatedRun {
  store: Store
  sealed: SealedBlobs
  blobs: ReturnType<typeof memoryBlobs>
  batches: PlannedBatch[]
  server: ModelServer
  checker: InvariantChecker
  caps: Caps
  changes: UpstreamChanges
  tally: Tally
  /** The events of the run, to investigate a failing seed. */
  trace: string[]
}

/** What a worker logs when it has lost a lease. */
const LOST = /worker lease expired|taken over by another worker/
const RULES = { file_retention_ms: () => 90 * DAY_MS }

type Check = (run: SimulatedRun) => Promise<void>

/** Simulates the run of `seed`, then calls `check` while its stores are still open. */
export async function simulateRun(seed: number, check: Check): Promise<void> {
  await simulate(seed, false, check)
}

/**
 * The same for a day and a half with opening hours and a change of daylight saving: faults, pauses and reloads around each
 * time when something opens or closes. In between, no machine runs.
 */
export async function simulateDay(seed: number, check: Check): Promise<void> {
  await simulate(seed, true, check)
}

async function simulate(seed: number, isDay: boolean, check: Check): Promise<void> {
  const folder = mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'offpeak-sim-'))
  try {
    const path = join(folder, 'offpeak.db')
    copyFileSync(await emptyDatabase(), path)
    const world = new World(seed, isDay, path)
    try {
      await world.prepare()
      for (const [i, at] of (isDay ? VISITS : [0]).entries()) {
        if (i > 0) await world.leapTo(at)
        await world.runWithFaults()
      }
      await world.runWithoutFaults()
      await check(world.run)
    } finally {
      await world.close()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

let template: Promise<string> | null = null

/** A migrated database, created once: copying it is faster. */
async function emptyDatabase(): Promise<string> {
  template ??= (async () => {
    const folder = mkdtempSync(join(tmpdir(), 'offpeak-sim-template-'))
    process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
    const path = join(folder, 'offpeak.db')
    const store = sqliteStore({ path })
    await store.migrate()
    await store.close()
    return path
  })()
  return await template
}

interface Slot {
  machine: Machine
  worker: Worker
  /** Takes up other upstreams. */
  reload: () => void
  /** Since when the slot has no machine; a new machine fills it. */
  emptySince: number | null
}

class World {
  readonly run: SimulatedRun
  readonly #random: SeededRandom
  readonly #start: number
  readonly #clock: TestClock
  readonly #master = masterKeyFromText(randomBytes(32).toString('base64'), 'the simulation')
  readonly #slots: Slot[] = []
  /** What answers the model `n`, in some runs; before a model server, in some of these. */
  readonly #remote: { api: RemoteBatchApi; isAlone: boolean } | null
  /** Of what engines and batch APIs do, so that it does not change the rest of a run. */
  readonly #serversRandom: SeededRandom
  #storeFaults: StoreFaults = NO_STORE_FAULTS
  #faults: ServerFaults = NO_SERVER_FAULTS
  #machines = 0

  constructor(seed: number, isDay: boolean, path: string) {
    this.#random = seededRandom(seed)
    const caps = new Caps(seed)
    const violate = (violation: string): void => {
      checker.violations.push(violation)
    }
    const tally = new Tally()
    const deadlineOf = (line: string): number => checker.deadlineOf(line)
    const fixed = caps.underestimates || caps.isMonthEnd
    const changes = new UpstreamChanges({ seed, isDay, fixed, violate, deadlineOf, tally })
    this.#serversRandom = seededRandom(seed + 0x5e44e4)
    this.#start = caps.isMonthEnd && !isDay ? MONTH_END - 30_000 : (changes.start ?? START)
    this.#clock = wholeMilliseconds(testClock(this.#start))
    const random = this.#random
    const store = sqliteStore({ path, leaseNow: () => this.#clock.now() })
    const blobs = memoryBlobs(this.#clock, () => (random.chance(0.3) ? 2 * ORPHAN_AGE_MS : 0))
    const sealed = sealBlobs(blobs, this.#master)
    const checker = new InvariantChecker(path, sealed, tally)
    const server = new ModelServer({
      clock: this.#clock,
      random,
      faults: () => this.#faults,
      capacity: random.int(4, 40),
      prompt_tokens: caps.prompt_tokens,
      onRequest: (asked) => checker.onRequest(asked),
      onEnded: (machine, line, result) => checker.onEnded(machine, line, result),
      tally,
    })
    // Where lines cost more than estimated, a batch API has more of them in flight than the bound allows for.
    this.#remote =
      random.chance(0.4) && !caps.underestimates
        ? {
            api: new RemoteBatchApi({
              clock: this.#clock,
              random,
              late: this.#serversRandom,
              server,
              hasFaults: () => this.#faults !== NO_SERVER_FAULTS,
              onSent: (machine, line) => checker.onHandedOver(machine, line),
              violate,
              deadlineOf,
              tally,
            }),
            isAlone: random.chance(0.5),
          }
        : null
    this.run = { store, sealed, blobs, batches: [], server, checker, caps, changes, tally, trace: [] }
  }

  async prepare(): Promise<void> {
    const random = this.#random
    const projects = random.int(1, 2)
    for (let i = 0; i < projects; i++) {
      const project_id = newId('project', this.#clock.now())
      await this.#write((tx) =>
        ensureProject(tx, { id: project_id, name: `p${i}`, plan: 'payg', created: this.#clock.now() }),
      )
      const batches = random.int(1, 2)
      for (let j = 0; j < batches; j++) await this.#addBatch(project_id)
      if (this.run.caps.wants(0.4)) await this.#addCap(project_id, false)
    }
    const machines = random.int(1, 3)
    for (let i = 0; i < machines; i++) {
      this.#slots.push(this.#newSlot())
      // No two sessions start at the same time, because their IDs sort by it.
      await this.#clock.advance(random.int(1, 50))
    }
  }

  async runWithFaults(): Promise<void> {
    const random = this.#random
    const severity = random.next()
    this.#storeFaults = {
      failsBefore: 0.08 * severity,
      answerLost: 0.08 * severity,
      stalls: random.chance(0.3) ? 0.2 * random.next() : 0,
      late: random.chance(0.3) ? 0.1 * random.next() : 0,
      crashes: random.chance(0.5) ? 0.004 : 0,
      stepMsMax: random.pick([0, 5, 40, 150]),
      isFull: false,
    }
    this.#faults = {
      timeouts: 0.03 * random.next(),
      resets: 0.1 * random.next(),
      malformed: 0.05 * random.next(),
      duplicates: 0.03 * random.next(),
      throttles: 0.1 * random.next(),
      usageMissing: 0.05 * random.next(),
    }
    const isLong = random.chance(0.3)
    const steps = random.int(20, 100) + (isLong ? 100 : 0)
    const full = isLong ? { from: random.int(0, 50), to: random.int(0, 2 * steps) } : null
    for (let step = 0; step < steps; step++) {
      if (full) this.#fill(full.from <= step && step < full.to)
      for (const slot of this.#slots) await this.#injectMachineFault(slot)
      if (random.chance(0.06)) await this.#changeWorkload()
      this.#changeUpstreams()
      await this.#changePauses()
      if (step % RECONCILE_EVERY === 0) await this.#reconcile()
      await this.#clock.advance(random.int(1, 2 * STEP_MS))
    }
    await this.#reconcile()
    this.#trace('the faults end')
  }

  /** Every machine crashes, and others start at that time. */
  async leapTo(at: number): Promise<void> {
    for (const { machine } of this.#slots) machine.crash()
    await this.#clock.advance(Math.max(0, at - this.#clock.now()))
    for (const slot of this.#slots) {
      this.#replace(slot)
      await this.#clock.advance(this.#random.int(1, 50))
    }
  }

  #changeUpstreams(): void {
    const what = this.run.changes.step()
    if (what !== null) this.#trace(what, 'outage of a tier begins or ends')
    for (const { machine, reload } of this.#slots) {
      if (machine.isCrashed || machine.isSuspended || !this.run.changes.reloads) continue
      this.#trace(`${machine.name} reloads`, 'reload')
      reload()
    }
  }

  async #changePauses(): Promise<void> {
    const { batches } = this.run
    const at = this.run.changes.pauses(batches.length)
    if (at !== null) await this.#setPaused(batches[at]!, null)
  }

  async #resumeBatches(): Promise<void> {
    for (const planned of this.run.batches) await this.#setPaused(planned, false)
  }

  /** Null: the other way round than it is. */
  async #setPaused(planned: PlannedBatch, paused: boolean | null): Promise<void> {
    const batch = await readBatchRow(this.run.store.read, planned.id)
    if (!batch || isTerminal(batch.status) || batch.status === 'cancelling') return
    const to = paused ?? batch.paused_at === null
    if (to === (batch.paused_at !== null)) return
    this.#trace(`${planned.name} is ${to ? 'paused' : 'resumed'}`, 'batch paused or resumed')
    await this.#write((tx) => setBatchPaused(tx, planned, to, this.#clock.now()))
  }

  /** During the run, because journals are deleted when their chunk is sealed. */
  async #reconcile(): Promise<void> {
    const found = await ledgerViolations(this.run)
    for (const one of found) this.run.checker.violations.push(`during the faults: ${one}`)
  }

  async runWithoutFaults(): Promise<void> {
    this.#storeFaults = NO_STORE_FAULTS
    this.#faults = NO_SERVER_FAULTS
    this.run.changes.endOutage()
    await this.#resumeBatches()
    const until = this.#clock.now() + RECOVERY_MS_MAX
    while (this.#clock.now() < until && !(await this.#allEnded())) {
      for (const slot of this.#slots) {
        slot.machine.resume()
        if (slot.machine.isCrashed) this.#replace(slot)
      }
      await this.#clock.advance(1_000)
    }
    for (const slot of this.#slots) await this.#end(slot)
    await this.#clock.advance(2 * ORPHAN_AGE_MS)
    const { store, sealed, blobs } = this.run
    await runMaintenance({ store, sealed, clock: this.#clock })
    const sweep = new OrphanSweep({ store, blobs, clock: this.#clock }, SWEEP)
    await sweep.tick()
    await this.#clock.advance(SWEEP.secondLookMs)
    await sweep.tick()
  }

  /** Without faults, a graceful shutdown must end. */
  async #end({ machine, worker }: Slot): Promise<void> {
    if (machine.isCrashed) return
    machine.resume()
    let ended = false
    const end = (): void => {
      ended = true
    }
    worker.stop().then(end, end)
    const until = this.#clock.now() + STOP_MS_MAX
    while (!ended && this.#clock.now() < until) await this.#clock.advance(1_000)
    if (!ended) this.run.checker.violations.push(`${machine.name} did not finish its graceful shutdown`)
  }

  async close(): Promise<void> {
    this.run.checker.close()
    await this.run.store.close()
  }

  async #allEnded(): Promise<boolean> {
    for (const { id } of this.run.batches) {
      const batch = await readBatchRow(this.run.store.read, id)
      if (!batch || !isTerminal(batch.status)) return false
    }
    return true
  }

  async #injectMachineFault(slot: Slot): Promise<void> {
    const random = this.#random
    const { machine } = slot
    if (slot.emptySince !== null) {
      if (random.chance(0.3)) this.#replace(slot)
      return
    }
    if (machine.isSuspended) {
      if (random.chance(0.06)) {
        this.#trace(`${machine.name} resumes`)
        machine.resume()
      }
      return
    }
    const dice = random.next()
    if (dice < 0.015) machine.crash()
    else if (dice < 0.035) {
      this.#trace(`${machine.name} is suspended`, 'machine suspended')
      machine.suspend()
    } else if (dice < 0.05) {
      this.#jump(machine, random.int(-8_000, 5_000))
    } else if (dice < 0.075) {
      this.#trace(`${machine.name} is asked to stop`, 'machine asked to stop')
      // An administrator may set the clock and restart the service.
      if (random.chance(0.3)) this.#jump(machine, -random.int(100, 8_000))
      const { worker } = slot
      const crash = (): void => machine.crash()
      const stopped = (): void => {
        this.run.checker.onStopped(machine.name)
        crash()
      }
      worker.stop().then(stopped, crash)
    }
  }

  #jump(machine: Machine, ms: number): void {
    this.#trace(`the clock of ${machine.name} jumps by ${ms} ms`, 'clock set')
    machine.jump(ms)
  }

  /** Adds a batch, or cancels one, deletes files or changes caps. */
  async #changeWorkload(): Promise<void> {
    const random = this.#random
    const { store, batches, caps } = this.run
    const planned = random.pick(batches)
    const { id, name, project_id } = planned
    if (caps.wants(0.3)) await this.#changeCaps(project_id)
    if (random.chance(0.6)) {
      await this.#addBatch(project_id)
      this.#trace(`b${batches.length - 1} is created`)
      return
    }
    const batch = await readBatchRow(store.read, id)
    if (!batch) return
    if (isTerminal(batch.status)) return await this.#removeFiles(planned, batch)
    const now = this.#clock.now()
    if (random.chance(0.5)) {
      this.#trace(`${name} is cancelled`, 'batch cancelled')
      await this.#write((tx) => cancelBatch(tx, project_id, id, now))
      return
    }
    const file = await readFileRow(store.read, batch.input_file_id)
    if (!file || file.deleted_at !== null) return
    this.#trace(`the input of ${name} is deleted`, 'input deleted')
    await this.#write((tx) => removeFile(tx, file, now))
  }

  /** As retention or a caller does. */
  async #removeFiles(planned: PlannedBatch, batch: BatchRow): Promise<void> {
    if (planned.read) return
    const { store, checker } = this.run
    const read = await resultLines(this.run, batch).catch(String)
    if (typeof read === 'string') {
      checker.violations.push(`${planned.name} cannot be read: ${read}`)
      return
    }
    planned.read = read
    this.#trace(`the files of ${planned.name} are deleted`, 'results deleted')
    for (const id of [batch.input_file_id, batch.output_file_id, batch.error_file_id]) {
      const file = id === null ? undefined : await readFileRow(store.read, id)
      if (file && file.deleted_at === null) await this.#write((tx) => removeFile(tx, file, this.#clock.now()))
    }
  }

  #fill(isFull: boolean): void {
    if (this.#storeFaults.isFull === isFull) return
    this.#storeFaults = { ...this.#storeFaults, isFull }
    this.#trace(isFull ? 'the database is full' : 'the database has space again')
  }

  #newSlot(): Slot {
    const slot: Slot = { ...this.#newMachine(() => slot), emptySince: null }
    return slot
  }

  #replace(slot: Slot): void {
    Object.assign(
      slot,
      this.#newMachine(() => slot),
      { emptySince: null },
    )
    this.#trace(`${slot.machine.name} starts`)
  }

  #newMachine(slotOf: () => Slot): Pick<Slot, 'machine' | 'worker' | 'reload'> {
    const random = this.#random
    const { store, blobs, checker, tally } = this.run
    const machine = new Machine({
      name: `machine ${++this.#machines}`,
      clock: this.#clock,
      random,
      storeFaults: () => this.#storeFaults,
      store,
      blobs,
      observe: (self, write) => checker.observe(self.name, write),
      tally,
      onCrash: (self) => {
        this.#trace(`${self.name} has crashed or stopped`, 'machine crashed or stopped')
        slotOf().emptySince = this.#clock.now()
      },
    })
    const sealed = sealBlobs(machine.blobs, this.#master)
    const { clock } = machine
    const gpus = new Budget(
      { gpus: this.#serversRandom.pick([['0'], ['0', '1']]), memory_bytes: 0, run_ms_min: 1_000 },
      clock,
    )
    const models = new Map(SIM_MODELS.map((model) => [model.id, model]))
    const sweep = new OrphanSweep({ store: machine.store, blobs: machine.blobs, clock }, SWEEP)
    const memory_bytes = random.pick([1, 3_000, 1_000_000])
    const makeUpstreams = (before: ReadonlyMap<string, Upstream[]>): Map<string, Upstream[]> =>
      new Map(SIM_MODELS.map(({ id }) => [id, this.#upstreamsFor(id, machine, gpus, before.get(id))]))
    const spills = new Map(SIM_MODELS.map(({ id }) => [id, this.#spillOf(id)]))
    let upstreams = makeUpstreams(new Map())
    const worker = new Worker({
      store: machine.store,
      sealed,
      clock,
      steadyClock: machine.steadyClock,
      log: this.#logOf(machine),
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
      flushIntervalMs: this.run.caps.underestimates ? FLUSH_MS_UNDERESTIMATED : FLUSH_MS,
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
      upstreams = makeUpstreams(upstreams)
      worker.setUpstreams(upstreams, spills)
      const kept = [...upstreams.values()].flat()
      for (const upstream of before) if (!kept.includes(upstream)) upstream.retire()
    }
    return { machine, worker, reload }
  }

  /** The model of a batch API is not changed by reloads. */
  #hasRemote(model: string): boolean {
    return this.#remote !== null && model !== SIM_MODEL.id
  }

  #spillOf(model: string): Spill {
    return this.#hasRemote(model) ? REMOTE_SPILL : this.run.changes.spill
  }

  #upstreamsFor(model: string, machine: Machine, gpus: Budget, before: Upstream[] | undefined): Upstream[] {
    const random = this.#random
    const { server, caps, tally } = this.run
    const lowest = (backend: Backend): Backend =>
      random.chance(0.3)
        ? simulatedEngine({
            server: backend,
            machine,
            gpus,
            random: this.#serversRandom,
            log: this.#logOf(machine),
            tally,
            mayFail: () => this.#faults !== NO_SERVER_FAULTS,
          })
        : backend
    const places = (): number => (caps.underestimates ? caps.inFlightMax : random.pick([2, 8, 64]))
    if (this.#remote === null || !this.#hasRemote(model))
      return this.run.changes.upstreams({
        machine,
        server: () => server.backendFor(machine),
        lowest,
        concurrency_max: places,
      })
    if (before) return before
    const { api } = this.#remote
    const remote = new Upstream({
      backend: batchApiBackend('batch-api', api.apiFor(machine)),
      concurrency_max: 4,
      modelAlias: null,
    })
    const own = new Upstream({
      backend: lowest(api.higherTier(server.backendFor(machine), machine, REMOTE_SPILL.whenDownMs, remote)),
      concurrency_max: places(),
      modelAlias: null,
      tier: 1,
    })
    return this.#remote.isAlone ? [remote] : [remote, own]
  }

  /** Warnings and errors of a worker go into the trace. */
  #logOf(machine: Machine): Log {
    const tell = (fields: object, message: string): void => {
      const error = 'err' in fields ? ` (${fields.err})` : ''
      if (LOST.test(message)) this.run.checker.onLost(machine.name)
      this.#trace(`${machine.name}: ${message}${error}`)
    }
    return { info() {}, warn: tell, error: tell }
  }

  async #addBatch(project_id: string): Promise<void> {
    const name = `b${this.run.batches.length}`
    const random = this.#random
    const now = this.#clock.now()
    const lines: string[] = []
    const index: FileIndex = { chunks: [], groups: [], unattributed: [] }
    const texts: string[] = []
    const ends: number[] = []
    let byte_start = 0
    const chunks = random.int(1, 6)
    for (let i = 0; i < chunks; i++) {
      const line_count = random.int(1, 12)
      let chunk = ''
      for (let j = 0; j < line_count; j++) {
        const line = `${name}/l${lines.length}${random.chance(0.04) ? '-refuse' : random.chance(0.03) ? '-poison' : ''}`
        lines.push(line)
        const text = inputLine(line, random)
        this.run.caps.entities.set(line, JSON.parse(text).metadata?.entity ?? '')
        chunk += `${text}\n`
      }
      const byte_end = byte_start + Buffer.byteLength(chunk)
      const first_line = lines.length - line_count + 1
      ends.push(lines.length - 1)
      index.chunks.push({ index: i, model: null, first_line, line_count, byte_start, byte_end })
      byte_start = byte_end
      texts.push(chunk)
    }
    const file_id = newId('file', now)
    const { sealed } = this.run
    const content = await sealed.put(project_id, `files/${file_id}/upload`, [Buffer.from(texts.join(''))])
    const indexed = await sealed.put(project_id, `files/${file_id}/index`, [
      Buffer.from(JSON.stringify(index)),
    ])
    const id = newId('batch', now)
    const windowMs = random.chance(0.25) ? random.int(500, 15_000) : DAY_MS
    const expires_at = now + windowMs
    await this.#write(async (tx) => {
      await insertBlobs(tx, project_id, [content, indexed], now)
      await insertFile(tx, {
        id: file_id,
        project_id,
        purpose: 'batch',
        filename: `${name}.jsonl`,
        bytes: content.bytes,
        line_count: lines.length,
        status: 'processed',
        status_details: null,
        errors: null,
        created: now,
        expires_at: now + 90 * DAY_MS,
        deleted_at: null,
        content_blob: content.key,
        index_blob: indexed.key,
        batch_id: null,
        part: null,
      })
      await insertBatch(tx, {
        id,
        project_id,
        key_id: 'key_simulated',
        endpoint: '/v1/chat/completions',
        input_file_id: file_id,
        completion_window: '24h',
        metadata: null,
        header_entity: null,
        language: null,
        total: lines.length,
        created: now,
        expires_at,
      })
      await insertTask(tx, { kind: 'plan', subject: id, project_id }, now)
    })
    this.run.batches.push({ id, name, project_id, lines, expires_at, read: null })
    this.run.checker.addBatch(name, expires_at, { id, ends })
    await this.#clock.advance(1)
  }

  async #addCap(project_id: string, isRunning: boolean): Promise<void> {
    const lines = this.run.batches
      .filter((batch) => batch.project_id === project_id)
      .reduce((sum, batch) => sum + batch.lines.length, 0)
    const { caps } = this.run
    const each = {
      nanos: costNanos(caps.prompt_tokens, TOKENS_MEAN, SIM_MODEL.price),
      tokens: caps.prompt_tokens + TOKENS_MEAN,
    }
    await caps.make((change) => this.#write(change), project_id, lines, each, this.#clock.now(), isRunning)
  }

  async #changeCaps(project_id: string): Promise<void> {
    const { caps } = this.run
    const changed = caps.wants(0.5) && (await caps.change((change) => this.#write(change), this.#clock.now()))
    if (!changed) await this.#addCap(project_id, true)
    this.#trace(changed ? 'a cap is changed' : 'a cap is created', 'cap created or changed')
  }

  /** A transaction of the API, which is not under test and has no faults. */
  async #write<T>(change: (tx: Writer) => Promise<T>): Promise<T> {
    return await this.run.checker.observe('the API', () => this.run.store.write(change))
  }

  /** `kind`: counted under that name. */
  #trace(what: string, kind?: string): void {
    if (kind !== undefined) this.run.tally.count(`world: ${kind}`)
    const seconds = ((this.#clock.now() - this.#start) / 1000).toFixed(3)
    this.run.trace.push(`${seconds} s: ${what.replace(RANDOM_PART_OF_IDS, '…')}`)
  }
}

/** Real clocks show whole milliseconds; a wait for a fraction ends at the next whole one. */
function wholeMilliseconds(clock: TestClock): TestClock {
  return { ...clock, after: (ms, fn) => clock.after(Math.ceil(ms), fn) }
}

function inputLine(line: string, random: SeededRandom): string {
  // Some lines name an unknown model and fail without being sent.
  const model = random.chance(0.03) ? 'unknown' : random.pick(SIM_MODELS).id
  const messages = [{ role: 'user', content: line }]
  const entity = random.chance(0.005) ? POISON : random.pick(['user:a', 'user:b'])
  const metadata = random.chance(0.5) ? { entity } : undefined
  const body = { model, messages, max_tokens: random.int(TOKENS_MEAN - 30, TOKENS_MEAN + 30) }
  return JSON.stringify({ custom_id: line, method: 'POST', url: '/v1/chat/completions', body, metadata })
}
