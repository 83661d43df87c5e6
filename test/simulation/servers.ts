// The servers that the configuration of a run names. The model `m` has a model server in one tier or two. The model `n` has
// the same, or one batch API or two, alone, before, beside or behind a model server. While a run has faults, operators
// remove models, batch APIs and tiers from the configuration and bring them back; each machine takes that up when it
// reloads.

import type { ResponseMemory } from '../../src/backends/response-memory.ts'
import type { MasterKey } from '../../src/blobs/master-key.ts'
import { BatchApiUpstream } from '../../src/dispatch/senders/batch-apis/batch-api-upstream.ts'
import type { Spill } from '../../src/dispatch/senders/routes.ts'
import type { Clock } from '../../src/domain/clock.ts'
import type { Log } from '../../src/domain/log.ts'
import type { Model } from '../../src/domain/model.ts'
import { Machine as Budget } from '../../src/engines/machine.ts'
import { ModelServer, type Upstream, type UpstreamTerms } from '../../src/servers/upstream.ts'
import { type Answering, backendOf } from './answering.ts'
import { Cell } from './cell.ts'
import type { Machine } from './machine.ts'
import { RemoteBatchApi, type RemoteBatchApiOptions } from './remote-batch-api.ts'
import { RemoteCalls } from './remote-calls.ts'
import { priceOf, SIM_MODEL, SIM_MODELS, type SimulatedRun } from './run.ts'
import { type SeededRandom, seededRandom } from './seeded-random.ts'
import { simulatedEngine } from './simulated-engine.ts'
import { SpillRules } from './spill-rules.ts'
import type { UpstreamChanges } from './upstream-changes.ts'

const REMOTE_MODEL = 'n'
const OWN = 'own'
const [FIRST, SECOND] = ['batch-api-0', 'batch-api-1']
const PLACES = [2, 8, 64]
/** The tiers of what answers the model `n`. */
type Layout = Readonly<Record<string, number>>
const ALONE: readonly Layout[] = [{ [FIRST]: 0 }, { [FIRST]: 0, [SECOND]: 0 }, { [FIRST]: 0, [SECOND]: 1 }]
const WITH_SERVER: readonly Layout[] = [
  { [FIRST]: 0, [OWN]: 1 },
  { [FIRST]: 0, [OWN]: 0 },
  { [OWN]: 0, [FIRST]: 1 },
  { [FIRST]: 0, [SECOND]: 0, [OWN]: 1 },
  { [FIRST]: 0, [SECOND]: 1, [OWN]: 2 },
  { [OWN]: 0, [FIRST]: 1, [SECOND]: 2 },
]
/** How long lines wait for a server that is down: in some runs longer than any is. */
const PATIENCE_MS = 1_000
const PATIENT_MS = 120_000
const CHANGE_CHANCE = 0.03
const RELOAD_CHANCE = 0.3
/** Until every machine has taken up a change, and finished what it had begun before. */
const CHANGE_MS = 30_000
/** Factors of the price of SIM_MODEL. */
const PRICES = [0, 0.5, 1, 1, 2, 5]
const PRICE_CHANCE = 0.05
/** Of runs with batch APIs. */
const CELL_CHANCE = 0.4

export interface ServersOptions {
  run: Omit<SimulatedRun, 'servers'>
  seed: number
  clock: Clock
  random: SeededRandom
  changes: UpstreamChanges
  hasFaults: () => boolean
  onWebhook: (upstream: string, remote_id: string) => void
  /** Where a cell has its database. */
  cellPath: string
  master: MasterKey
}

/** What a configuration names. */
interface Configured {
  version: number
  /** Models that are not removed. */
  models: ReadonlySet<string>
  /** Of the model `n`, where it has a batch API. */
  layout: Layout
  /** By model, and by batch API that has a price of its own. */
  prices: ReadonlyMap<string, number>
}

export class Servers {
  readonly #options: ServersOptions
  /** Of what engines and batch APIs do, so that it does not change the rest of a run. */
  readonly #serversRandom: SeededRandom
  readonly #changesRandom: SeededRandom
  readonly #hasChanges: boolean
  readonly #apis: readonly { api: RemoteBatchApi | Cell; calls: RemoteCalls }[]
  /** Whether the first batch API is a cell. */
  readonly #hasCell: boolean
  readonly #whole: Configured
  readonly #remoteSpill: Spill
  readonly #patienceMs: number
  readonly #rules: SpillRules
  readonly #machines = new Map<Machine, MachineServers>()
  #configured: Configured
  #changedAt = Number.NEGATIVE_INFINITY
  readonly #pricesRandom: SeededRandom
  readonly #hasPrices: boolean
  /** What was configured, and until when it was (Unix ms). */
  readonly #former: { prices: ReadonlyMap<string, number>; until: number }[] = []
  /** Whether the configuration was ever without something that lines may need. */
  readonly removed = new Set<string>()

  constructor(options: ServersOptions) {
    this.#options = options
    const { run, seed, random, clock } = options
    const { plans, tally, caps, checker } = run
    this.#serversRandom = seededRandom(seed + 0x5e44e4)
    this.#changesRandom = seededRandom(seed + 0xc4a6e5)
    const own = this.#changesRandom
    // Where lines cost more than estimated, a batch API has more of them in flight than the bound allows for.
    const hasRemote = random.chance(0.4) && !caps.underestimates
    const isAlone = hasRemote && random.chance(0.5)
    const layout = hasRemote ? own.pick(isAlone ? ALONE : WITH_SERVER) : {}
    this.#hasChanges = own.chance(0.5)
    this.#remoteSpill = { whenDownMs: own.pick([500, 2_000, null]), whenAtRisk: own.chance(0.5) }
    this.#patienceMs = own.chance(0.3) ? PATIENT_MS : PATIENCE_MS
    const violate = (violation: string): void => void checker.violations.push(violation)
    this.#rules = new SpillRules({
      spill: this.#remoteSpill,
      tierOf: (machine, server) => this.#machines.get(machine)?.layout[server],
      servers: Object.keys(layout),
      isSettled: () => clock.now() - this.#changedAt > CHANGE_MS,
      ...{ clock, plans, violate, tally },
    })
    this.#hasCell = seededRandom(seed + 0xce11).chance(CELL_CHANCE)
    this.#apis = Object.keys(layout)
      .filter((name) => name !== OWN)
      .map((name) => this.#newApi(name, violate))
    const models = new Set(SIM_MODELS.map(({ id }) => id))
    this.#pricesRandom = seededRandom(seed + 0x9a1ce)
    const draw = this.#pricesRandom
    // Where lines cost more than estimated, prices would make that more.
    this.#hasPrices = draw.chance(0.4) && !caps.underestimates
    const prices = new Map([...models].map((id) => [id, this.#hasPrices ? draw.pick(PRICES) : 1]))
    if (this.#hasPrices)
      for (const { api } of this.#apis) if (draw.chance(0.5)) prices.set(api.name, draw.pick(PRICES))
    this.#whole = { version: 0, models, layout, prices }
    this.#configured = this.#whole
  }

  #newApi(
    name: string,
    violate: (violation: string) => void,
  ): { api: RemoteBatchApi | Cell; calls: RemoteCalls } {
    const { run, seed, random, clock, hasFaults, onWebhook, cellPath: path, master } = this.#options
    const { plans, tally, server, checker } = run
    const late = this.#serversRandom
    const calls = new RemoteCalls({ name, clock, random, late, hasFaults, tally })
    const isAnthropic = seededRandom(seed + 0xa27409 + (name === FIRST ? 0 : 1)).chance(0.3)
    const options = {
      ...{ name, isAnthropic, clock, random, late, calls, server, plans, hasFaults, violate, tally },
      lowestPrice: () => this.#lowestLately(),
      onOffered: (machine: Machine, requests: readonly string[]) =>
        this.#rules.onOffered(machine, name, requests),
      onAsked: (machine: Machine, requests: readonly string[]) => checker.onHandedOver(machine, requests),
      onCreated: (machine: Machine) => this.#rules.answered(machine, name),
      onWebhook: (remote_id: string) => onWebhook(name, remote_id),
    } satisfies RemoteBatchApiOptions
    const isCell = this.#hasCell && name === FIRST
    const api = isCell ? new Cell({ ...options, path, master }) : new RemoteBatchApi(options)
    return { api, calls }
  }

  get apis(): readonly (RemoteBatchApi | Cell)[] {
    return this.#apis.map(({ api }) => api)
  }

  get cells(): readonly Cell[] {
    return this.apis.filter((api) => api instanceof Cell)
  }

  /** How long the retry policy waits for a server. */
  get patienceMs(): number {
    return this.#patienceMs
  }

  /** Whether every line of the model has an answer sooner or later: batch APIs alone have it, and are waited for. */
  mustAnswer(model: string): boolean {
    const hasServer = this.#apis.length === 0 || OWN in this.#whole.layout
    return model === REMOTE_MODEL && !hasServer && this.#patienceMs === PATIENT_MS && this.cells.length === 0
  }

  /** The servers as one machine has them configured. */
  of(machine: Machine, log: Log, memory: ResponseMemory): MachineServers {
    const gpus = this.#serversRandom.pick([['0'], ['0', '1']])
    const budget = new Budget({ gpus, memory_bytes: 0, run_ms_min: 1_000 }, machine.clock)
    const servers = new MachineServers({
      ...this.#options,
      ...{ machine, log, memory, budget },
      serversRandom: this.#serversRandom,
      changesRandom: this.#changesRandom,
      apis: this.apis,
      rules: this.#rules,
      remoteSpill: this.#remoteSpill,
      configured: () => this.#configured,
    })
    this.#machines.set(machine, servers)
    return servers
  }

  /** Operators change the configuration, and batch APIs fail or are well again; says what has happened. */
  step(): string[] {
    const outages = this.#apis.map(({ calls }) => calls.step())
    const crashes = this.#options.hasFaults() ? this.cells.map((cell) => cell.step()) : []
    return [...outages, ...crashes, this.#change(), this.#changePrice()].filter((what) => what !== null)
  }

  #changePrice(): string | null {
    const random = this.#pricesRandom
    if (!this.#hasPrices || !random.chance(PRICE_CHANCE)) return null
    const { prices, version } = this.#configured
    const name = random.pick([...this.#whole.models, ...this.apis.map((api) => api.name)])
    const factor = random.pick(PRICES)
    const isOwn = this.#whole.models.has(name) || random.chance(0.7)
    const next = new Map(prices)
    if (isOwn) next.set(name, factor)
    else next.delete(name)
    this.#former.push({ prices, until: this.#options.clock.now() })
    this.#configured = { ...this.#configured, version: version + 1, prices: next }
    this.#options.run.tally.count('world: price changed')
    return `the price of ${name} is ${isOwn ? `${factor}-fold` : 'that of its model'}`
  }

  /** The lowest price at which lines may have been reserved that a machine hands over just now. */
  #lowestLately(): number {
    const now = this.#options.clock.now()
    const lately = this.#former.filter(({ until }) => now - until < CHANGE_MS)
    return Math.min(...[this.#configured, ...lately].flatMap(({ prices }) => [...prices.values()]))
  }

  #change(): string | null {
    const random = this.#changesRandom
    if (!this.#hasChanges || !random.chance(CHANGE_CHANCE)) return null
    const { models, layout, version } = this.#configured
    const names = Object.keys(this.#whole.layout)
    const name = random.pick([...this.#whole.models, ...names, ...names])
    const next = version + 1
    this.#changedAt = this.#options.clock.now()
    this.#options.run.tally.count('world: configuration changed')
    if (this.#whole.models.has(name)) {
      const isRemoved = models.has(name)
      if (isRemoved) this.removed.add(name)
      const left = new Set(models)
      if (isRemoved) left.delete(name)
      else left.add(name)
      this.#configured = { ...this.#configured, version: next, models: left }
      return `the model ${name} is ${isRemoved ? 'removed' : 'back'}`
    }
    if (name in layout && Object.keys(layout).length > 1 && random.chance(0.6)) {
      const { [name]: _, ...left } = layout
      this.removed.add(name)
      this.#configured = { ...this.#configured, version: next, layout: left }
      return `${name} is removed`
    }
    const tier = random.int(0, 2)
    this.#configured = { ...this.#configured, version: next, layout: { ...layout, [name]: tier } }
    return `${name} is in tier ${tier}`
  }

  isOutdated(machine: Machine): boolean {
    return this.#machines.get(machine)?.version !== this.#configured.version
  }

  /** Whether a machine is to reload now: its configuration is old, or somebody asks for it. */
  reloads(machine: Machine): boolean {
    return this.isOutdated(machine)
      ? this.#changesRandom.chance(RELOAD_CHANCE)
      : this.#options.changes.reloads
  }

  endFaults(): void {
    for (const { api, calls } of this.#apis) {
      calls.endFaults()
      api.endFaults()
    }
    const { version, prices } = this.#configured
    this.#configured = { ...this.#whole, version: version + 1, prices }
  }
}

interface MachineServersOptions extends ServersOptions {
  machine: Machine
  log: Log
  memory: ResponseMemory
  budget: Budget
  serversRandom: SeededRandom
  changesRandom: SeededRandom
  apis: readonly (RemoteBatchApi | Cell)[]
  rules: SpillRules
  remoteSpill: Spill
  configured: () => Configured
}

/** As of its last reload. */
export class MachineServers {
  readonly #options: MachineServersOptions
  readonly #remote = new Map<string, Upstream>()
  /** By batch API: its own price, changed in place; one that is removed keeps the last. */
  readonly #ownPrices = new Map<string, { factor: number | undefined }>()
  /** By model; of one that is removed, the last. */
  readonly #prices = new Map<string, number>()
  /** Changed in place, as a worker expects. */
  readonly models = new Map<string, Model>()
  upstreams: ReadonlyMap<string, readonly Upstream[]> = new Map()
  layout: Layout = {}
  version = -1

  constructor(options: MachineServersOptions) {
    this.#options = options
    this.reload()
  }

  get spills(): ReadonlyMap<string, Spill> {
    const { changes, remoteSpill, apis } = this.#options
    return new Map(
      [...this.models.keys()].map((id) => [id, isRemote(id, apis) ? remoteSpill : changes.spill]),
    )
  }

  /** Takes up what is configured now. Returns what is not used any more. */
  reload(): Upstream[] {
    const { configured, apis } = this.#options
    const before = [...this.upstreams.values()].flat()
    const { version, models, layout, prices } = configured()
    this.version = version
    this.layout = layout
    this.models.clear()
    for (const model of SIM_MODELS) {
      const { id } = model
      const factor = prices.get(id) ?? 1
      if (!models.has(id)) continue
      this.#prices.set(id, factor)
      const upstreams = isRemote(id, apis) ? Object.keys(layout) : []
      const dearest = Math.max(factor, ...upstreams.map((name) => prices.get(name) ?? factor))
      this.models.set(id, { ...model, price: priceOf(factor), dearest: priceOf(dearest) })
    }
    this.upstreams = new Map(
      [...this.models.keys()].map((id) => [
        id,
        isRemote(id, apis) ? this.#remoteUpstreams(prices) : this.#usual(this.upstreams.get(id)?.[0] ?? null),
      ]),
    )
    const kept = [...this.upstreams.values()].flat()
    const unused = before.filter((upstream) => !kept.includes(upstream))
    // With its model a server goes too, and is another one when the model is back.
    for (const upstream of unused) this.#remote.delete(upstream.name)
    return unused
  }

  /** `before`: the server of the lowest tier, which stays the same whatever the configuration says of it. */
  #usual(before: Upstream | null): Upstream[] {
    const { machine, run, changes, memory } = this.#options
    return changes.upstreams({
      machine,
      before,
      server: () => run.server.answering(machine, memory, this.#priceOf),
      lowest: (answer, name) => this.#lowest(answer, name),
      concurrency_max: () => this.#places(),
    })
  }

  readonly #priceOf = (model: string): number => this.#prices.get(model) ?? 1

  /** Those that stay keep what they have learned. */
  #remoteUpstreams(prices: ReadonlyMap<string, number>): Upstream[] {
    const { changesRandom } = this.#options
    for (const name of this.#remote.keys()) if (!(name in this.layout)) this.#remote.delete(name)
    return Object.entries(this.layout).map(([name, tier]) => {
      const known = this.#remote.get(name)
      const own = (known && this.#ownPrices.get(name)) ?? { factor: undefined }
      own.factor = prices.get(name)
      this.#ownPrices.set(name, own)
      const price = own.factor === undefined ? null : priceOf(own.factor)
      const terms = { concurrency_max: name === OWN ? changesRandom.pick(PLACES) : 4, tier, price }
      known?.setTerms(terms)
      const upstream = known ?? this.#newRemote(name, terms)
      this.#remote.set(name, upstream)
      return upstream
    })
  }

  #newRemote(name: string, terms: UpstreamTerms): Upstream {
    const { machine, run, memory, rules, apis } = this.#options
    const api = apis.find((one) => one.name === name)
    const own = this.#ownPrices.get(name)
    const price = (model: string): number => own?.factor ?? this.#priceOf(model)
    if (api)
      return new BatchApiUpstream({
        ...{ name, api: api.apiFor(machine, price), modelAlias: null },
        ...terms,
      })
    const server = run.server.answering(machine, memory, price)
    const watched: Answering = async (call) => {
      rules.onSent(machine, OWN, run.plans.requestOf(call))
      const result = await server(call)
      if (result.kind === 'answered' || result.kind === 'refused') rules.answered(machine, OWN)
      return result
    }
    return new ModelServer({ backend: this.#lowest(watched, OWN), modelAlias: null, ...terms })
  }

  /** Some are engines that the worker starts. */
  #lowest(server: Answering, name: string): ReturnType<typeof backendOf> {
    const { machine, budget, log, run, random, serversRandom, hasFaults } = this.#options
    if (!random.chance(0.3)) return backendOf(name, server)
    const { tally } = run
    const parts = { name, server, machine, gpus: budget, random: serversRandom, log, tally }
    return simulatedEngine({ ...parts, mayFail: hasFaults })
  }

  #places(): number {
    const { run, random } = this.#options
    return run.caps.underestimates ? run.caps.inFlightMax : random.pick(PLACES)
  }
}

function isRemote(model: string, apis: readonly unknown[]): boolean {
  return apis.length > 0 && model !== SIM_MODEL.id
}
