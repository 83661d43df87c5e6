// One simulated run: machines with workers, model servers, a database and a blob store, with faults drawn from one
// seed. The database is real; the other ports are fakes, and time is virtual. Once the faults end, the machines must
// finish every batch.

import { randomBytes } from 'node:crypto'
import { copyFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { masterKeyFromText } from '../../src/blobs/master-key.ts'
import { sealBlobs } from '../../src/blobs/sealed.ts'
import { type DeclaredEndpoint, declareEndpoints } from '../../src/domain/endpoint.ts'
import type { Log } from '../../src/domain/log.ts'
import { runMaintenance } from '../../src/maintenance/maintenance.ts'
import { OrphanSweep } from '../../src/maintenance/sweep.ts'
import { sqliteStore } from '../../src/store/sqlite/store.ts'
import { type TestClock, testClock } from '../fakes/clock.ts'
import { makeMigratedSqlite } from '../support/migrated-sqlite.ts'
import { type ApiProcess, startApi } from './api-process.ts'
import { Caps } from './caps.ts'
import { InvariantChecker } from './invariant-checker.ts'
import { JournalDamage } from './journal-damage.ts'
import { ledgerViolations } from './ledger-violations.ts'
import { Machine, NO_STORE_FAULTS, type StoreFaults } from './machine.ts'
import { memoryBlobs } from './memory-blobs.ts'
import { ModelServer, type ServerFaults } from './model-server.ts'
import { Plans } from './plans.ts'
import { refuseTexts } from './refused-texts.ts'
import { DECLARED_ENDPOINTS, SEALING, type SimulatedRun } from './run.ts'
import { type SeededRandom, seededRandom } from './seeded-random.ts'
import { Servers } from './servers.ts'
import { ORPHAN_AGE_MS, type SimulatedWorker, SWEEP, startWorker } from './simulated-worker.ts'
import { Tally } from './tally.ts'
import { keepTrace } from './trace.ts'
import { UpstreamChanges, VISITS } from './upstream-changes.ts'
import { Workload } from './workload.ts'

/** The random part of IDs does not come from the seed; only the order of IDs matters, and that follows time. */
const RANDOM_PART_OF_IDS = /[0-9a-z]{26}/g
const START = Date.UTC(2026, 0, 15, 3)
const STEP_MS = 250
/** Of the time, until it goes on: a run takes a hundredth of that. */
const READS_MAX = 1_000_000
/** Steps with faults between two reconciliations. */
const RECONCILE_EVERY = 20
/** Long, because always-throttled lines are retried one by one, and again by each worker that claims the chunk. */
const RECOVERY_MS_MAX = 1_800_000
const STOP_MS_MAX = 30_000

const NO_SERVER_FAULTS: ServerFaults = {
  timeouts: 0,
  resets: 0,
  malformed: 0,
  duplicates: 0,
  throttles: 0,
  usageMissing: 0,
  largeBodies: 0,
}
/** Of runs in which journals are damaged, and the chance at each step. */
const DAMAGE_CHANCE = 0.12
const DAMAGE_STEP_CHANCE = 0.03
/** Of runs in which no worker runs for a while, and how many steps that takes. */
const IDLE_CHANCE = 0.15
const IDLE_STEPS = { min: 20, max: 60 }
/**
 * How long a batch takes to end that is cancelled or whose window has closed: longer than a failed task waits, beside what
 * batch APIs are waited for.
 */
const END_MS_MAX = 90_000
/** How long tasks, and what is to be tidied up at batch APIs, may take when all batches have ended. */
const TIDY_MS_MAX = 120_000
/** The same after hours without a worker: what has failed for so long is tried again every 15 minutes. */
const TIDY_DAY_MS_MAX = 1_000_000

/** Of runs in which endpoints are not declared for a while, and how many steps that takes. */
const UNDECLARED_CHANCE = 0.2
const UNDECLARED_STEPS = { min: 5, max: 40 }

/** What a worker logs when it has lost a lease. */
const LOST = /worker lease expired|taken over by another worker/

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
  // Another test of the process may have declared others.
  declareEndpoints(DECLARED_ENDPOINTS)
  const folder = mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'offpeak-sim-'))
  try {
    const path = join(folder, 'offpeak.db')
    const cellPath = join(folder, 'cell.db')
    for (const one of [path, cellPath]) copyFileSync(await emptyDatabase(), one)
    const world = new World(seed, isDay, path, cellPath)
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
    declareEndpoints([])
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
    await makeMigratedSqlite(path)
    const db = new DatabaseSync(path)
    keepTrace(db)
    refuseTexts(db)
    db.close()
    return path
  })()
  return await template
}

interface Slot extends SimulatedWorker {
  machine: Machine
  /** Since when the slot has no machine; a new machine fills it. */
  emptySince: number | null
}

class World {
  readonly run: SimulatedRun
  readonly #random: SeededRandom
  /** Of what was added later, so that it does not change the rest of a run. */
  readonly #more: SeededRandom
  readonly #isDay: boolean
  readonly #start: number
  readonly #clock: TestClock
  readonly #master = masterKeyFromText(randomBytes(32).toString('base64'), 'the simulation')
  readonly #slots: Slot[] = []
  readonly #changes: UpstreamChanges
  readonly #servers: Servers
  readonly #workload: Workload
  readonly #damage: JournalDamage
  readonly #hasDamage: boolean
  /** The steps in which no worker runs. */
  readonly #idle: { from: number; to: number } | null
  /** The steps in which some endpoints are not declared. */
  readonly #undeclared: { from: number; to: number; endpoints: readonly DeclaredEndpoint[] } | null
  #api: ApiProcess | null = null
  #storeFaults: StoreFaults = NO_STORE_FAULTS
  /** When the database became full last. */
  #fullFrom = 0
  #faults: ServerFaults = NO_SERVER_FAULTS
  #machines = 0

  constructor(seed: number, isDay: boolean, path: string, cellPath: string) {
    this.#isDay = isDay
    this.#random = seededRandom(seed)
    this.#more = seededRandom(seed + 0xadded)
    const random = this.#random
    const caps = new Caps(seed)
    const tally = new Tally()
    const plans = new Plans()
    const violate = (violation: string): void => void checker.violations.push(violation)
    const fixed = caps.underestimates || caps.monthEnd !== null
    const changes = new UpstreamChanges({ ...{ seed, isDay, fixed, violate, plans, tally } })
    this.#changes = changes
    this.#start = caps.monthEnd !== null && !isDay ? caps.monthEnd - 30_000 : (changes.start ?? START)
    this.#clock = simulatedClock(this.#start)
    const clock = this.#clock
    const now = (): number => clock.now()
    const store = sqliteStore({ path, leaseNow: now })
    const blobs = memoryBlobs(clock, () => (random.chance(0.3) ? 2 * ORPHAN_AGE_MS : 0))
    const sealed = sealBlobs(blobs, this.#master, SEALING)
    const checker = new InvariantChecker({ path, sealed, plans, now, tally })
    const server = new ModelServer({
      ...{ clock, random, plans, tally },
      bodies: seededRandom(seed + 0xb0d1e5),
      faults: () => this.#faults,
      capacity: random.int(4, 40),
      prompt_tokens: caps.prompt_tokens,
      onRequest: (sent) => checker.onRequest(sent),
      onEnded: (machine, request, result) => checker.onEnded(machine, request, result),
    })
    const common = { store, sealed, blobs, plans, server, checker, caps, tally, now, trace: [] }
    const servers = new Servers({
      ...{ run: common, seed, clock, random, changes, cellPath, master: this.#master },
      hasFaults: () => this.#faults !== NO_SERVER_FAULTS,
      onWebhook: (upstream, remote_id) => this.#workload.onWebhook(upstream, remote_id),
    })
    const run = { ...common, servers }
    this.run = run
    this.#servers = servers
    const trace = (what: string, kind?: string): void => this.#trace(what, kind)
    this.#workload = new Workload({ run, seed, random, clock, changes, trace })
    this.#damage = new JournalDamage(run, this.#more)
    this.#hasDamage = this.#more.chance(DAMAGE_CHANCE)
    const from = this.#more.int(0, 40)
    const idleSteps = this.#more.int(IDLE_STEPS.min, IDLE_STEPS.max)
    this.#idle = this.#more.chance(IDLE_CHANCE) ? { from, to: from + idleSteps } : null
    const endpoints = seededRandom(seed + 0xdec1a7e)
    const goneAt = endpoints.int(2, 40)
    const goneSteps = endpoints.int(UNDECLARED_STEPS.min, UNDECLARED_STEPS.max)
    const isUndeclared = endpoints.chance(UNDECLARED_CHANCE)
    this.#undeclared = isUndeclared
      ? {
          ...{ from: goneAt, to: goneAt + goneSteps },
          endpoints: DECLARED_ENDPOINTS.filter(() => endpoints.chance(0.6)),
        }
      : null
  }

  async prepare(): Promise<void> {
    const random = this.#random
    await this.#workload.prepare()
    for (const cell of this.#servers.cells) await cell.start()
    const machines = random.int(1, 3)
    for (let i = 0; i < machines; i++) {
      this.#slots.push(this.#newSlot())
      // No two sessions start at the same time, because their IDs sort by it.
      await this.#clock.advance(random.int(1, 50))
    }
    if (this.#idle) this.#api = this.#newApi()
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
      largeBodies: this.#more.pick([0, 0, 0.05, 0.3]),
    }
    const isLong = random.chance(0.3)
    const steps = random.int(20, 100) + (isLong ? 100 : 0)
    const full = isLong ? { from: random.int(0, 50), to: random.int(0, 2 * steps) } : null
    for (let step = 0; step < steps; step++) {
      if (full) await this.#fill(full.from <= step && step < full.to)
      if (step === this.#idle?.from) this.#stopAll()
      if (step === this.#undeclared?.from) this.#undeclare(this.#undeclared.endpoints)
      if (step === this.#undeclared?.to) this.#declareAll()
      for (const slot of this.#slots) await this.#injectMachineFault(slot, step)
      if (this.#api?.machine.isCrashed && this.#more.chance(0.3)) this.#api = this.#newApi()
      if (random.chance(0.06)) await this.#workload.change()
      await this.#workload.step()
      this.#changeServers()
      if (this.#hasDamage && this.#more.chance(DAMAGE_STEP_CHANCE)) await this.#damageJournal()
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

  #changeServers(): void {
    const what = this.#changes.step()
    if (what !== null) this.#trace(what, 'outage of a tier begins or ends')
    for (const change of this.#servers.step()) this.#trace(change)
    for (const { machine, reload } of this.#slots) {
      if (machine.isCrashed || machine.isSuspended || !this.#servers.reloads(machine)) continue
      this.#trace(`${machine.name} reloads`, 'reload')
      reload()
    }
  }

  /** Every worker is asked to stop, and none starts for a while: the API ends what there is to end. */
  #stopAll(): void {
    this.#trace('all workers are asked to stop', 'no worker runs')
    for (const slot of this.#slots)
      if (slot.emptySince === null && !slot.machine.isSuspended) this.#stop(slot)
  }

  /** Every process is killed, and starts later with a configuration that does not declare these endpoints. */
  #undeclare(endpoints: readonly DeclaredEndpoint[]): void {
    this.#trace('all processes are killed: some endpoints are not declared', 'endpoints not declared')
    for (const { path } of endpoints) this.#servers.removed.add(path)
    this.#killAll(DECLARED_ENDPOINTS.filter((one) => !endpoints.includes(one)))
  }

  #declareAll(): void {
    this.#trace('all processes are killed: all endpoints are declared')
    this.#killAll(DECLARED_ENDPOINTS)
  }

  #killAll(declared: readonly DeclaredEndpoint[]): void {
    for (const { machine } of this.#slots) machine.crash()
    this.#api?.machine.crash()
    declareEndpoints(declared)
    for (const cell of this.#servers.cells) cell.kill()
  }

  async #damageJournal(): Promise<void> {
    const what = await this.#damage.step()
    if (what !== null) this.#trace(what, 'journal damaged')
  }

  /** During the run, because journals are deleted when their chunk is sealed. */
  async #reconcile(): Promise<void> {
    const found = await ledgerViolations(this.run, this.#damage.batches)
    for (const one of found) this.run.checker.violations.push(`during the faults: ${one}`)
  }

  async runWithoutFaults(): Promise<void> {
    await this.#fill(false)
    this.#storeFaults = NO_STORE_FAULTS
    this.#faults = NO_SERVER_FAULTS
    this.#changes.endOutage()
    this.#servers.endFaults()
    if (this.#undeclared) this.#declareAll()
    await this.#workload.endFaults()
    const from = this.#clock.now()
    await this.#recover(RECOVERY_MS_MAX, async () => {
      const late = await this.#workload.lateBatches(from, END_MS_MAX + this.#servers.patienceMs)
      for (const one of late) this.run.checker.violations.push(one)
      return late.length > 0 || (await this.#workload.allEnded())
    })
    await this.#recover(this.#isDay ? TIDY_DAY_MS_MAX : TIDY_MS_MAX, () => this.#isTidy())
    for (const slot of this.#slots) await this.#end(slot.machine, () => slot.worker.stop())
    if (this.#api) await this.#end(this.#api.machine, this.#api.stop)
    await this.#clock.advance(2 * ORPHAN_AGE_MS)
    const { store, sealed, blobs } = this.run
    await runMaintenance({ store, sealed, clock: this.#clock })
    const sweep = new OrphanSweep({ store, blobs, clock: this.#clock }, SWEEP)
    await sweep.tick()
    await this.#clock.advance(SWEEP.secondLookMs)
    await sweep.tick()
  }

  async #recover(msMax: number, isDone: () => Promise<boolean>): Promise<void> {
    const until = this.#clock.now() + msMax
    while (this.#clock.now() < until && !(await isDone())) {
      for (const slot of this.#slots) {
        slot.machine.resume()
        if (slot.machine.isCrashed) this.#replace(slot)
        else if (this.#servers.isOutdated(slot.machine)) slot.reload()
      }
      await this.#clock.advance(1_000)
    }
  }

  /** Whether nothing is left to do beside batches. */
  async #isTidy(): Promise<boolean> {
    const { read } = this.run.store
    const rows = await read.selectFrom('remote_batches').select('id').where('state', '!=', 'done').execute()
    const tasks = await read.selectFrom('tasks').select('id').execute()
    return rows.length + tasks.length === 0
  }

  /** Without faults, a graceful shutdown must end. */
  async #end(machine: Machine, stop: () => Promise<void>): Promise<void> {
    if (machine.isCrashed) return
    machine.resume()
    let ended = false
    const end = (): void => {
      ended = true
    }
    stop().then(end, end)
    const until = this.#clock.now() + STOP_MS_MAX
    while (!ended && this.#clock.now() < until) await this.#clock.advance(1_000)
    if (!ended) this.run.checker.violations.push(`${machine.name} did not finish its graceful shutdown`)
  }

  async close(): Promise<void> {
    this.run.checker.close()
    await this.run.store.close()
    for (const cell of this.#servers.cells) await cell.close()
  }

  async #injectMachineFault(slot: Slot, step: number): Promise<void> {
    const random = this.#random
    const { machine } = slot
    if (slot.emptySince !== null) {
      const mayStart = !this.#idle || step < this.#idle.from || step >= this.#idle.to
      if (random.chance(0.3) && mayStart) this.#replace(slot)
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
      this.#stop(slot)
    }
  }

  #stop({ machine, worker }: Slot): void {
    const crash = (): void => machine.crash()
    const stopped = (): void => {
      this.run.checker.onStopped(machine)
      crash()
    }
    worker.stop().then(stopped, crash)
  }

  #jump(machine: Machine, ms: number): void {
    this.#trace(`the clock of ${machine.name} jumps by ${ms} ms`, 'clock set')
    machine.jump(ms)
  }

  async #fill(isFull: boolean): Promise<void> {
    if (this.#storeFaults.isFull === isFull) return
    if (isFull) this.#fullFrom = this.#clock.now()
    else await this.run.caps.onSpace(this.run.store, this.#fullFrom)
    this.#storeFaults = { ...this.#storeFaults, isFull }
    this.#trace(isFull ? 'the database is full' : 'the database has space again')
  }

  #newSlot(): Slot {
    const slot: Slot = { ...this.#newWorker(() => slot), emptySince: null }
    return slot
  }

  #replace(slot: Slot): void {
    Object.assign(
      slot,
      this.#newWorker(() => slot),
      { emptySince: null },
    )
    this.#trace(`${slot.machine.name} starts`)
  }

  #newWorker(slotOf: () => Slot): Omit<Slot, 'emptySince'> {
    const machine = this.#newMachine(`machine ${++this.#machines}`, () => {
      slotOf().emptySince = this.#clock.now()
    })
    const worker = startWorker({
      ...{ machine, master: this.#master, random: this.#random, servers: this.#servers },
      underestimates: this.run.caps.underestimates,
      isCrowded: this.#workload.isCrowded,
      log: this.#logOf(machine),
    })
    return { machine, ...worker }
  }

  #newApi(): ApiProcess {
    const machine = this.#newMachine('the API process', () => {})
    return startApi(machine, this.#master, this.#logOf(machine))
  }

  #newMachine(name: string, onCrash: () => void): Machine {
    const { store, blobs, checker, tally } = this.run
    return new Machine({
      ...{ name, clock: this.#clock, random: this.#random, store, blobs, tally },
      storeFaults: () => this.#storeFaults,
      observe: (self, write) => checker.observe(self.name, write),
      onCrash: (self) => {
        this.#trace(`${self.name} has crashed or stopped`, 'machine crashed or stopped')
        onCrash()
      },
    })
  }

  /** Warnings and errors of a worker go into the trace. */
  #logOf(machine: Machine): Log {
    const tell = (fields: object, message: string): void => {
      const error = 'err' in fields ? ` (${fields.err})` : ''
      if (LOST.test(message)) this.run.checker.onLost(machine)
      this.#trace(`${machine.name}: ${message}${error}`)
    }
    return { info() {}, warn: tell, error: tell }
  }

  /** `kind`: counted under that name. */
  #trace(what: string, kind?: string): void {
    if (kind !== undefined) this.run.tally.count(`world: ${kind}`)
    const seconds = ((this.#clock.now() - this.#start) / 1000).toFixed(3)
    this.run.trace.push(`${seconds} s: ${what.replace(RANDOM_PART_OF_IDS, '…')}`)
  }
}

/**
 * Real clocks show whole milliseconds; a wait for a fraction ends at the next whole one. Code that reads the time for ever
 * without letting it go on is stopped.
 */
function simulatedClock(start: number): TestClock {
  const clock = testClock(start)
  let at = start
  let reads = 0
  const now = (): number => {
    if (clock.now() !== at) [at, reads] = [clock.now(), 0]
    if (++reads > READS_MAX) throw new Error('a loop does not end')
    return at
  }
  return {
    ...clock,
    now,
    after: (ms, fn) => clock.after(Math.ceil(ms), fn),
    async advance(ms) {
      await clock.advance(ms)
      now()
    },
  }
}
