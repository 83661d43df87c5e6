// One simulated night: machines with workers, a model server, a database, a blob store, and everything that can
// happen to them, dealt out by one seed. The database is real; below the ports all else is fake, and time is
// virtual. When the storm is over, whatever is still alive must bring every batch to its end.

import { randomBytes } from 'node:crypto'
import { copyFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { AnswerBudget } from '../../src/backends/answer-budget.ts'
import { masterKeyFromText } from '../../src/blobs/master-key.ts'
import { type SealedBlobs, sealBlobs } from '../../src/blobs/sealed.ts'
import { Upstream } from '../../src/dispatch/send/upstream.ts'
import { Worker } from '../../src/dispatch/worker.ts'
import { isTerminal } from '../../src/domain/batch.ts'
import { newId } from '../../src/domain/ids.ts'
import type { Log } from '../../src/domain/log.ts'
import type { Model } from '../../src/domain/model.ts'
import { costNanos } from '../../src/domain/money.ts'
import { planBatch } from '../../src/intake/plan.ts'
import type { FileIndex } from '../../src/jsonl/file-index.ts'
import { cancelBatch } from '../../src/lifecycle/cancel-batch.ts'
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
import { bookViolations } from './books.ts'
import { Caps } from './caps.ts'
import { InvariantChecker } from './invariant-checker.ts'
import { Machine, POISON, type StoreFaults } from './machine.ts'
import { memoryBlobs } from './memory-blobs.ts'
import { ModelServer, type ServerFaults } from './model-server.ts'
import { resultLines } from './result-lines.ts'
import { type SeededRandom, seededRandom } from './seeded-random.ts'

/** IDs are drawn by chance of another kind; nothing but their order matters, and that is by time. */
const CHANCE_OF_IDS = /[0-9a-z]{26}/g
const START = Date.UTC(2026, 0, 15, 3)
const MONTH_END = Date.UTC(2026, 1, 1)
const LEASE_MS = 2_000
const FLUSH_MS = 100
/** Where lines cost more than estimated: what counts before a flush shows. */
const FLUSH_MS_LOW = 3_000
/** A blob that no row knows is an orphan when it is older: by more than clocks jump or are apart. */
const ORPHAN_AGE_MS = 20_000
const SWEEP: SweepPace = {
  orphanAgeMs: ORPHAN_AGE_MS,
  everyMs: 4_000,
  askEveryMs: 1_000,
  // Clocks that jump bring it nearer.
  secondLookMs: 7_000,
}
const STEP_MS = 250
/** Steps of the storm between two looks at the books. */
const BOOKS_EVERY = 20
/** Lines that never find room are tried one by one, and anew by each worker that takes their chunk up. */
const CALM_MS_MAX = 600_000
const STOP_MS_MAX = 30_000
const TOKENS_MEAN = 50
const DAY_MS = 86_400_000

const CALM: StoreFaults = {
  fails_before: 0,
  answer_lost: 0,
  stalls: 0,
  late: 0,
  dies: 0,
  step_ms_max: 2,
  is_full: false,
}
const FRIENDLY: ServerFaults = {
  loses: 0,
  breaks: 0,
  garbles: 0,
  doubles: 0,
  throttles: 0,
  forgets_usage: 0,
}

export const SIM_MODEL: Model = {
  id: 'm',
  context_window: null,
  max_output_tokens: 100,
  price: { input_picos: 1_000_000, output_picos: 10_000_000 },
  priced: true,
  supports: { structured_output: true, tools: true },
  created: 0,
}

/** Two, of one price: lines of one chunk may need either. */
const SIM_MODELS: readonly Model[] = [SIM_MODEL, { ...SIM_MODEL, id: 'n' }]

export interface PlannedBatch {
  id: string
  name: string
  project_id: string
  /** The lines' texts, which are their custom_ids too, in order. */
  lines: string[]
  expires_at: number
  /** Its result lines, read before its files were removed; null while they are there. */
  read: { outputs: string[]; errors: string[] } | null
}

export interface SimulatedRun {
  store: Store
  sealed: SealedBlobs
  blobs: ReturnType<typeof memoryBlobs>
  batches: PlannedBatch[]
  server: ModelServer
  witness: InvariantChecker
  caps: Caps
  /** What happened, for whoever looks at a seed that failed. */
  trace: string[]
}

/** What a worker says when what it held is not its own any more. */
const LOST = /the lease ran out|taken over by another worker/
const RULES = { file_retention_ms: () => 90 * DAY_MS }

/** Runs the night of `seed`, then calls `judge` while its stores are still there. */
export async function simulateRun(
  seed: number,
  judge: (night: SimulatedRun) => Promise<void>,
): Promise<void> {
  const folder = mkdtempSync(join(existsSync('/dev/shm') ? '/dev/shm' : tmpdir(), 'offpeak-sim-'))
  try {
    const path = join(folder, 'offpeak.db')
    copyFileSync(await emptyDatabase(), path)
    const world = new World(seed, path)
    try {
      await world.prepare()
      await world.storm()
      await world.calm()
      await judge(world.night)
    } finally {
      await world.close()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

let template: Promise<string> | null = null

/** A migrated database, made once: copying it is quicker. */
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
  /** Since when nobody is there; a new machine takes the place. */
  empty_since: number | null
}

class World {
  readonly night: SimulatedRun
  readonly #random: SeededRandom
  readonly #start: number
  readonly #clock: TestClock
  readonly #master = masterKeyFromText(randomBytes(32).toString('base64'), 'the simulation')
  readonly #slots: Slot[] = []
  #storeFaults: StoreFaults = CALM
  #faults: ServerFaults = FRIENDLY
  #machines = 0

  constructor(seed: number, path: string) {
    this.#random = seededRandom(seed)
    const caps = new Caps(seed)
    this.#start = caps.isMonthEnd ? MONTH_END - 30_000 : START
    this.#clock = wholeMilliseconds(testClock(this.#start))
    const random = this.#random
    const store = sqliteStore({ path, leaseNow: () => this.#clock.now() })
    const blobs = memoryBlobs(this.#clock, () => (random.chance(0.3) ? 2 * ORPHAN_AGE_MS : 0))
    const sealed = sealBlobs(blobs, this.#master)
    const witness = new InvariantChecker(path, sealed)
    const server = new ModelServer({
      clock: this.#clock,
      random,
      faults: () => this.#faults,
      capacity: random.int(4, 40),
      prompt_tokens: caps.prompt_tokens,
      onAsked: (asked) => witness.onAsked(asked),
      onEnded: (machine, line, result) => witness.onEnded(machine, line, result),
    })
    this.night = { store, sealed, blobs, batches: [], server, witness, caps, trace: [] }
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
      if (this.night.caps.wants(0.4)) await this.#addCap(project_id, false)
    }
    const machines = random.int(1, 3)
    for (let i = 0; i < machines; i++) {
      this.#slots.push(this.#newSlot())
      // No two sessions are of the same age: their IDs sort by it.
      await this.#clock.advance(random.int(1, 50))
    }
  }

  /** Everything goes wrong, for a while. */
  async storm(): Promise<void> {
    const random = this.#random
    const wild = random.next()
    this.#storeFaults = {
      fails_before: 0.08 * wild,
      answer_lost: 0.08 * wild,
      stalls: random.chance(0.3) ? 0.2 * random.next() : 0,
      late: random.chance(0.3) ? 0.1 * random.next() : 0,
      dies: random.chance(0.5) ? 0.004 : 0,
      step_ms_max: random.pick([0, 5, 40, 150]),
      is_full: false,
    }
    this.#faults = {
      loses: 0.03 * random.next(),
      breaks: 0.1 * random.next(),
      garbles: 0.05 * random.next(),
      doubles: 0.03 * random.next(),
      throttles: 0.1 * random.next(),
      forgets_usage: 0.05 * random.next(),
    }
    const isLong = random.chance(0.3)
    const steps = random.int(20, 100) + (isLong ? 100 : 0)
    const full = isLong ? { from: random.int(0, 50), to: random.int(0, 2 * steps) } : null
    for (let step = 0; step < steps; step++) {
      if (full) this.#fill(full.from <= step && step < full.to)
      for (const slot of this.#slots) await this.#happen(slot)
      if (random.chance(0.06)) await this.#disturb()
      if (step % BOOKS_EVERY === 0) await this.#compareBooks()
      await this.#clock.advance(random.int(1, 2 * STEP_MS))
    }
    await this.#compareBooks()
    this.#tell('the storm is over')
  }

  /** While chunks are open: once they are sealed, their journals are gone. */
  async #compareBooks(): Promise<void> {
    const found = await bookViolations(this.night)
    for (const one of found) this.night.witness.violations.push(`in the storm: ${one}`)
  }

  async calm(): Promise<void> {
    this.#storeFaults = CALM
    this.#faults = FRIENDLY
    const until = this.#clock.now() + CALM_MS_MAX
    while (this.#clock.now() < until && !(await this.#allEnded())) {
      for (const slot of this.#slots) {
        slot.machine.thaw()
        if (slot.machine.isDead) this.#replace(slot)
      }
      await this.#clock.advance(1_000)
    }
    for (const slot of this.#slots) await this.#end(slot)
    await this.#clock.advance(2 * ORPHAN_AGE_MS)
    const { store, sealed, blobs } = this.night
    await runMaintenance({ store, sealed, clock: this.#clock })
    const sweep = new OrphanSweep({ store, blobs, clock: this.#clock }, SWEEP)
    await sweep.tick()
    await this.#clock.advance(SWEEP.secondLookMs)
    await sweep.tick()
  }

  /** In good weather whoever is asked to stop ends. */
  async #end({ machine, worker }: Slot): Promise<void> {
    if (machine.isDead) return
    machine.thaw()
    let ended = false
    const end = (): void => {
      ended = true
    }
    worker.stop().then(end, end)
    const until = this.#clock.now() + STOP_MS_MAX
    while (!ended && this.#clock.now() < until) await this.#clock.advance(1_000)
    if (!ended) this.night.witness.violations.push(`${machine.name} was asked to stop, and does not end`)
  }

  async close(): Promise<void> {
    this.night.witness.close()
    await this.night.store.close()
  }

  async #allEnded(): Promise<boolean> {
    for (const { id } of this.night.batches) {
      const batch = await readBatchRow(this.night.store.read, id)
      if (!batch || !isTerminal(batch.status)) return false
    }
    return true
  }

  async #happen(slot: Slot): Promise<void> {
    const random = this.#random
    const { machine } = slot
    if (slot.empty_since !== null) {
      if (random.chance(0.3)) this.#replace(slot)
      return
    }
    if (machine.isFrozen) {
      if (random.chance(0.06)) {
        this.#tell(`${machine.name} thaws`)
        machine.thaw()
      }
      return
    }
    const dice = random.next()
    if (dice < 0.015) machine.die()
    else if (dice < 0.035) {
      this.#tell(`${machine.name} freezes`)
      machine.freeze()
    } else if (dice < 0.05) {
      this.#jump(machine, random.int(-8_000, 5_000))
    } else if (dice < 0.075) {
      this.#tell(`${machine.name} is asked to stop`)
      // Whoever puts a clock right may be the one who restarts what runs there.
      if (random.chance(0.3)) this.#jump(machine, -random.int(100, 8_000))
      const { worker } = slot
      const gone = (): void => machine.die()
      const stopped = (): void => {
        this.night.witness.onStopped(machine.name)
        gone()
      }
      worker.stop().then(stopped, gone)
    }
  }

  #jump(machine: Machine, ms: number): void {
    this.#tell(`the clock of ${machine.name} jumps by ${ms} ms`)
    machine.jump(ms)
  }

  /** Somebody has more work, or changes his mind. */
  async #disturb(): Promise<void> {
    const random = this.#random
    const { store, batches, caps } = this.night
    const planned = random.pick(batches)
    const { id, name, project_id } = planned
    if (caps.wants(0.3)) await this.#changeCaps(project_id)
    if (random.chance(0.6)) {
      await this.#addBatch(project_id)
      this.#tell(`b${batches.length - 1} is created`)
      return
    }
    const batch = await readBatchRow(store.read, id)
    if (!batch) return
    if (isTerminal(batch.status)) return await this.#removeFiles(planned, batch)
    const now = this.#clock.now()
    if (random.chance(0.5)) {
      this.#tell(`${name} is cancelled`)
      await this.#write((tx) => cancelBatch(tx, project_id, id, now))
      return
    }
    const file = await readFileRow(store.read, batch.input_file_id)
    if (!file || file.deleted_at !== null) return
    this.#tell(`the input of ${name} is deleted`)
    await this.#write((tx) => removeFile(tx, file, now))
  }

  /** Its time is over, or somebody has what he came for. */
  async #removeFiles(planned: PlannedBatch, batch: BatchRow): Promise<void> {
    if (planned.read) return
    const { store, witness } = this.night
    const read = await resultLines(this.night, batch).catch(String)
    if (typeof read === 'string') {
      witness.violations.push(`${planned.name} cannot be read: ${read}`)
      return
    }
    planned.read = read
    this.#tell(`the files of ${planned.name} are removed`)
    for (const id of [batch.input_file_id, batch.output_file_id, batch.error_file_id]) {
      const file = id === null ? undefined : await readFileRow(store.read, id)
      if (file && file.deleted_at === null) await this.#write((tx) => removeFile(tx, file, this.#clock.now()))
    }
  }

  #fill(is_full: boolean): void {
    if (this.#storeFaults.is_full === is_full) return
    this.#storeFaults = { ...this.#storeFaults, is_full }
    this.#tell(is_full ? 'the database is full' : 'the database has room again')
  }

  #newSlot(): Slot {
    const slot: Slot = { ...this.#newMachine(() => slot), empty_since: null }
    return slot
  }

  #replace(slot: Slot): void {
    Object.assign(
      slot,
      this.#newMachine(() => slot),
      { empty_since: null },
    )
    this.#tell(`${slot.machine.name} starts`)
  }

  #newMachine(slotOf: () => Slot): { machine: Machine; worker: Worker } {
    const random = this.#random
    const { store, blobs, witness, server } = this.night
    const machine = new Machine({
      name: `machine ${++this.#machines}`,
      clock: this.#clock,
      random,
      storeFaults: () => this.#storeFaults,
      store,
      blobs,
      observe: (self, write) => witness.observe(self.name, write),
      onDeath: (self) => {
        this.#tell(`${self.name} is gone`)
        slotOf().empty_since = this.#clock.now()
      },
    })
    const sealed = sealBlobs(machine.blobs, this.#master)
    const { clock } = machine
    const models = new Map(SIM_MODELS.map((model) => [model.id, model]))
    const sweep = new OrphanSweep({ store: machine.store, blobs: machine.blobs, clock }, SWEEP)
    const memory_bytes = random.pick([1, 3_000, 1_000_000])
    const worker = new Worker({
      store: machine.store,
      sealed,
      clock,
      log: this.#logOf(machine),
      random: random.next,
      models,
      upstreams: new Map(
        SIM_MODELS.map(({ id }) => [
          id,
          [
            new Upstream({
              backend: server.seenFrom(machine),
              concurrency_max: this.night.caps.isLow ? this.night.caps.in_flight : random.pick([2, 8, 64]),
              modelAlias: null,
            }),
          ],
        ]),
      ),
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
      flushIntervalMs: this.night.caps.isLow ? FLUSH_MS_LOW : FLUSH_MS,
      memoryBytes: memory_bytes,
      answers: new AnswerBudget(memory_bytes),
      blobFreshMs: ORPHAN_AGE_MS / 10,
      tasks: {
        plan: (task, signal) =>
          planBatch({ store: machine.store, sealed, clock, models, rules: RULES }, task, signal),
      },
      async maintenance() {
        await runMaintenance({ store: machine.store, sealed, clock })
        await sweep.tick()
      },
    })
    // One that cannot open its session ends, as its process would.
    worker.start().catch(() => machine.die())
    return { machine, worker }
  }

  /** What a worker has to say goes into the diary. */
  #logOf(machine: Machine): Log {
    const tell = (fields: object, message: string): void => {
      const error = 'err' in fields ? ` (${fields.err})` : ''
      if (LOST.test(message)) this.night.witness.onLost(machine.name)
      this.#tell(`${machine.name}: ${message}${error}`)
    }
    return { info() {}, warn: tell, error: tell }
  }

  async #addBatch(project_id: string): Promise<void> {
    const name = `b${this.night.batches.length}`
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
        this.night.caps.entities.set(line, JSON.parse(text).metadata?.entity ?? '')
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
    const { sealed } = this.night
    const content = await sealed.put(project_id, `files/${file_id}/upload`, [Buffer.from(texts.join(''))])
    const indexed = await sealed.put(project_id, `files/${file_id}/index`, [
      Buffer.from(JSON.stringify(index)),
    ])
    const id = newId('batch', now)
    const window_ms = random.chance(0.25) ? random.int(500, 15_000) : DAY_MS
    const expires_at = now + window_ms
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
    this.night.batches.push({ id, name, project_id, lines, expires_at, read: null })
    this.night.witness.expect(name, expires_at, { id, ends })
    await this.#clock.advance(1)
  }

  async #addCap(project_id: string, isRunning: boolean): Promise<void> {
    const lines = this.night.batches
      .filter((batch) => batch.project_id === project_id)
      .reduce((sum, batch) => sum + batch.lines.length, 0)
    const { caps } = this.night
    const each = {
      nanos: costNanos(caps.prompt_tokens, TOKENS_MEAN, SIM_MODEL.price),
      tokens: caps.prompt_tokens + TOKENS_MEAN,
    }
    await caps.make((change) => this.#write(change), project_id, lines, each, this.#clock.now(), isRunning)
  }

  async #changeCaps(project_id: string): Promise<void> {
    const { caps } = this.night
    const changed = caps.wants(0.5) && (await caps.change((change) => this.#write(change), this.#clock.now()))
    if (!changed) await this.#addCap(project_id, true)
    this.#tell(changed ? 'a cap is changed' : 'a cap is made')
  }

  /** What the API does: it is not what is tried here, so nothing befalls it. */
  async #write<T>(change: (tx: Writer) => Promise<T>): Promise<T> {
    return await this.night.witness.observe('the API', () => this.night.store.write(change))
  }

  #tell(what: string): void {
    const seconds = ((this.#clock.now() - this.#start) / 1000).toFixed(3)
    this.night.trace.push(`${seconds} s: ${what.replace(CHANCE_OF_IDS, '…')}`)
  }
}

/** As real clocks show them; whoever waits for a fraction waits for the next whole one. */
function wholeMilliseconds(clock: TestClock): TestClock {
  return { ...clock, after: (ms, fn) => clock.after(Math.ceil(ms), fn) }
}

function inputLine(line: string, random: SeededRandom): string {
  // Some name a model that nobody has, and end without being sent.
  const model = random.chance(0.03) ? 'unknown' : random.pick(SIM_MODELS).id
  const messages = [{ role: 'user', content: line }]
  const entity = random.chance(0.005) ? POISON : random.pick(['user:a', 'user:b'])
  const metadata = random.chance(0.5) ? { entity } : undefined
  const body = { model, messages, max_tokens: random.int(TOKENS_MEAN - 30, TOKENS_MEAN + 30) }
  return JSON.stringify({ custom_id: line, method: 'POST', url: '/v1/chat/completions', body, metadata })
}
