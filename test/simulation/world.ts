// One simulated run: machines with workers, model servers, a database and a blob store, with faults drawn from one
// seed. The database is real; the other ports are fakes, and time is virtual. Once the faults end, the machines must
// finish every batch.
import { randomBytes } from 'node:crypto'
import { copyFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { masterKeyFromText } from '../../src/blobs/master-key.ts'
import { sealBlobs } from '../../src/blobs/sealed.ts'
import type { Log } from '../../src/domain/log.ts'
import { runMaintenance } from '../../src/maintenance/maintenance.ts'
import { OrphanSweep } from '../../src/maintenance/sweep.ts'
import { sqliteStore } from '../../src/store/sqlite/store.ts'
import { type TestClock, testClock } from '../fakes/clock.ts'
import { Caps } from './caps.ts'
import { InvariantChecker } from './invariant-checker.ts'
import { ledgerViolations } from './ledger-violations.ts'
import { Machine, type StoreFaults } from './machine.ts'
import { memoryBlobs } from './memory-blobs.ts'
import { ModelServer, type ServerFaults } from './model-server.ts'
import type { SimulatedRun } from './run.ts'
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
const MONTH_END = Date.UTC(2026, 1, 1)
const STEP_MS = 250
/** Steps with faults between two reconciliations. */
const RECONCILE_EVERY = 20
/** Long, because always-throttled lines are retried one by one, and again by each worker that claims the chunk. */
const RECOVERY_MS_MAX = 600_000
const STOP_MS_MAX = 30_000

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
    keepTrace(path)
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
  readonly #start: number
  readonly #clock: TestClock
  readonly #master = masterKeyFromText(randomBytes(32).toString('base64'), 'the simulation')
  readonly #slots: Slot[] = []
  readonly #changes: UpstreamChanges
  readonly #servers: Servers
  readonly #workload: Workload
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
    this.#changes = changes
    this.#start = caps.isMonthEnd && !isDay ? MONTH_END - 30_000 : (changes.start ?? START)
    this.#clock = wholeMilliseconds(testClock(this.#start))
    const random = this.#random
    const clock = this.#clock
    const store = sqliteStore({ path, leaseNow: () => clock.now() })
    const blobs = memoryBlobs(clock, () => (random.chance(0.3) ? 2 * ORPHAN_AGE_MS : 0))
    const sealed = sealBlobs(blobs, this.#master)
    const checker = new InvariantChecker(path, sealed, tally)
    const server = new ModelServer({
      clock,
      random,
      faults: () => this.#faults,
      capacity: random.int(4, 40),
      prompt_tokens: caps.prompt_tokens,
      onRequest: (asked) => checker.onRequest(asked),
      onEnded: (machine, line, result) => checker.onEnded(machine, line, result),
      tally,
    })
    const run = { store, sealed, blobs, batches: [], server, checker, caps, tally, trace: [] }
    this.run = run
    this.#servers = new Servers({
      ...{ run, clock, random, changes },
      serversRandom: seededRandom(seed + 0x5e44e4),
      hasFaults: () => this.#faults !== NO_SERVER_FAULTS,
    })
    const trace = (what: string, kind?: string): void => this.#trace(what, kind)
    this.#workload = new Workload({ run, random, clock, changes, trace })
  }

  async prepare(): Promise<void> {
    const random = this.#random
    await this.#workload.prepare()
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
      if (random.chance(0.06)) await this.#workload.change()
      this.#changeUpstreams()
      await this.#workload.changePauses()
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
    const what = this.#changes.step()
    if (what !== null) this.#trace(what, 'outage of a tier begins or ends')
    for (const { machine, reload } of this.#slots) {
      if (machine.isCrashed || machine.isSuspended || !this.#changes.reloads) continue
      this.#trace(`${machine.name} reloads`, 'reload')
      reload()
    }
  }

  /** During the run, because journals are deleted when their chunk is sealed. */
  async #reconcile(): Promise<void> {
    const found = await ledgerViolations(this.run)
    for (const one of found) this.run.checker.violations.push(`during the faults: ${one}`)
  }

  async runWithoutFaults(): Promise<void> {
    this.#storeFaults = NO_STORE_FAULTS
    this.#faults = NO_SERVER_FAULTS
    this.#changes.endOutage()
    await this.#workload.resumeBatches()
    const until = this.#clock.now() + RECOVERY_MS_MAX
    while (this.#clock.now() < until && !(await this.#workload.allEnded())) {
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

  #newMachine(slotOf: () => Slot): Omit<Slot, 'emptySince'> {
    const random = this.#random
    const { store, blobs, checker, tally, caps } = this.run
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
    const { underestimates } = caps
    const log = this.#logOf(machine)
    const parts = { machine, master: this.#master, random, servers: this.#servers, underestimates, log }
    return { machine, ...startWorker(parts) }
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
