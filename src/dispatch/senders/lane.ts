// The lines of one model that wait for a model server. fair-queue.ts decides which line is next; the lines of a chunk
// are sent in the order of their prompts. Lines that missed before and are due go before fresh ones if they were
// throttled, and alternate with fresh ones if they failed, so that lines that keep failing get at most half of the
// slots. routes.ts decides where a line goes, and circuit.ts which lines are sent to a server whose circuit is open.
import type { ServerLoad } from '../../backends/backend.ts'
import { Alarm, type Clock } from '../../domain/clock.ts'
import { ModelServer, type Upstream } from '../../servers/upstream.ts'
import type { Run } from '../run.ts'
import { type Entry, FairQueue } from './fair-queue.ts'
import { chooseOrProbe, chooseServer, type Route } from './routes.ts'

/** The low-water mark, in lines: at least, and as a multiple of the servers' concurrency. */
const LINES_AHEAD_MIN = 1000
const LINES_AHEAD_FACTOR = 2

/** The number of waiting lines below which upstreams of this concurrency need more lines. */
export function lowWaterMark(concurrency: number): number {
  return Math.max(LINES_AHEAD_MIN, concurrency * LINES_AHEAD_FACTOR)
}

/** The load of a server that no line may be sent to. */
const NO_LOAD: ServerLoad = { waiting: 0, atRisk: false, deadline: Number.POSITIVE_INFINITY }

interface Sending extends Entry {
  readonly server: ModelServer
}

export class Lane {
  readonly model: string
  /** The model's lines by their state; counted by the part that places lines. */
  unsent = 0
  retrying = 0
  unsubmitted = 0
  #route: Route
  readonly #clock: Clock
  readonly #queue: FairQueue
  /** Unsent lines that missed before, or were placed again; failed lines apart. */
  readonly #again: Entry[] = []
  readonly #failed: Entry[] = []
  /** Lines without an answer from a batch API, for any other upstream. */
  readonly #returned: Entry[] = []
  /** Whether the last line sent had failed before. */
  #sentFailed = false
  readonly #atRisk: ReadonlySet<string>
  readonly #alarm: Alarm
  readonly #turn: { schedule(): void }

  /** Makes the lane of a model. `atRisk`: batches that may miss their deadline; changed in place. */
  constructor(
    model: string,
    route: Route,
    clock: Clock,
    turn: { schedule(): void },
    atRisk: ReadonlySet<string> = new Set(),
  ) {
    this.model = model
    this.#route = route
    this.#clock = clock
    this.#turn = turn
    this.#atRisk = atRisk
    this.#queue = new FairQueue(atRisk)
    this.#alarm = new Alarm(clock, () => turn.schedule())
    this.#watchServers(route.servers)
  }

  #watchServers(servers: readonly ModelServer[]): void {
    for (const { onDemand } of servers) onDemand?.onChange(() => this.#turn.schedule())
  }

  get route(): Route {
    return this.#route
  }

  /** Applies another configuration; lines in flight at removed servers end there. */
  set route(route: Route) {
    this.#watchServers(route.servers.filter((one) => !this.#route.servers.includes(one)))
    const onDemand = new Set(route.servers.map((one) => one.onDemand))
    this.#leaveServers(this.#route.servers.filter((one) => !onDemand.has(one.onDemand)))
    this.#route = route
  }

  /** Tells removed servers that no line of this lane waits; servers on demand may have lines of other models. */
  #leaveServers(servers: readonly ModelServer[]): void {
    for (const { onDemand } of servers) onDemand?.update(this, NO_LOAD)
  }

  get upstreams(): readonly Upstream[] {
    return this.#route.upstreams
  }

  get inUse(): readonly Upstream[] {
    return this.#route.inUse(this.#clock.now())
  }

  /** Lines that wait here, including those that wait for their next attempt. */
  get waiting(): number {
    return this.unsent + this.retrying + this.unsubmitted
  }

  /** The number of waiting fresh lines of at-risk batches. */
  get waitingAtRisk(): number {
    return this.#queue.entriesAtRisk
  }

  /** The number of lines that the lane's servers take at once now. */
  #serverPlaces(now: number): number {
    const forAtRisk = this.#atRisk.size === 0 ? [] : this.#route.serversForAtRisk(now)
    let sum = 0
    for (const tiers of [this.#route.serversInUse(now), forAtRisk])
      for (const servers of tiers) for (const one of servers) sum += one.concurrency(now)
    return sum
  }

  /** The number of lines that the lane's upstreams take at once now. */
  get concurrency(): number {
    const now = this.#clock.now()
    const places = this.#serverPlaces(now)
    if (this.#route.servers.length === this.upstreams.length) return places
    return this.inUse.reduce(
      (sum, one) => (one instanceof ModelServer ? sum : sum + one.concurrency(now)),
      places,
    )
  }

  get inFlight(): number {
    return this.upstreams.reduce((sum, { limit }) => sum + limit.inFlight, 0)
  }

  /** Whether the lane needs more lines, so that no slot stays empty. */
  get isLow(): boolean {
    const least = Math.max(LINES_AHEAD_MIN, this.#queue.linesAhead)
    const { waiting } = this
    // The concurrency is asked for only where it matters.
    return waiting < least || waiting < lowWaterMark(this.concurrency)
  }

  /** Whether a model server is to get the line, rather than a batch API. */
  prefersServers(run: Run, position: number, now: number): boolean {
    return this.#route.isMixed ? this.#choosesServer(run, position, now) : this.#route.servers.length > 0
  }

  // Apart, since a closure costs its function memory for every line.
  #choosesServer(run: Run, position: number, now: number): boolean {
    const avoid = run.triesOf(position)?.avoid ?? null
    const line = { isAtRisk: this.#atRisk.has(run.batch.id), avoid, isLate: run.isLate }
    const areServersLow = (): boolean =>
      this.unsent + this.retrying < this.#serverPlaces(now) * LINES_AHEAD_FACTOR
    return this.#route.prefersServers(line, areServersLow, now)
  }

  /** Whether no line, or no line of one batch, can go anywhere until a circuit's pause is over. */
  blocked(now: number, batch_id?: string): boolean {
    if (!this.#route.inUse(now).every((one) => one.blocked(now, batch_id))) return false
    return batch_id === undefined || !this.#atRisk.has(batch_id) || !this.takesAtRisk(now, batch_id)
  }

  /** Whether lines of at-risk batches, or of one of them, may be sent though others may not. */
  takesAtRisk(now: number, batch_id?: string): boolean {
    if (this.#atRisk.size === 0) return false
    return !this.#route
      .serversForAtRisk(now)
      .flat()
      .every((one) => one.blocked(now, batch_id))
  }

  add(run: Run, positions: readonly number[]): void {
    this.#queue.add(run, positions, this.unsent)
  }

  /** Learns from an answer with this many tokens. */
  answered(run: Run, position: number, tokens: number): void {
    this.#queue.lengths.ended(run, position, tokens)
  }

  /** Adds an unsent line that was in a queue before. */
  addAgain(run: Run, position: number): void {
    const tries = run.triesOf(position)
    const { avoid = null } = tries ?? {}
    const entry = { run, position }
    if (avoid !== null && !(avoid instanceof ModelServer) && this.#route.serversBesides(avoid).length > 0)
      this.#returned.push(entry)
    else if (tries !== undefined && tries.count.failures > 0) this.#failed.push(entry)
    else this.#again.push(entry)
  }

  /** Reports the waiting lines to servers that run on demand; to be called about once a second. */
  updateServers(): void {
    if (this.#route.servers.every(({ onDemand }) => onDemand === null)) return
    const load = this.#load()
    const wanted = this.#wanted(load)
    for (const server of this.#route.servers)
      server.onDemand?.update(this, wanted.includes(server) ? load : NO_LOAD)
  }

  /** The servers that lines may be sent to, or could be if they were up. */
  #wanted({ atRisk }: ServerLoad): readonly ModelServer[] {
    const now = this.#clock.now()
    const tiers = [...this.#route.serversInUse(now), ...this.#forReturned()]
    if (atRisk) tiers.push(...this.#route.serversForAtRisk(now))
    return tiers.flat().filter((server) => server.placesAllowed(now) > 0)
  }

  /** The servers for the first line that a batch API left without an answer. */
  #forReturned(): readonly (readonly ModelServer[])[] {
    const first = firstOf(this.#returned)
    const avoid = first?.run.triesOf(first.position)?.avoid ?? null
    return avoid === null ? [] : this.#route.serversBesides(avoid)
  }

  /** Starts servers that run on demand, if lines wait for them. */
  wakeServers(): void {
    if (this.unsent === 0 && this.retrying === 0) return
    if (this.#route.servers.every(({ onDemand }) => onDemand === null || onDemand.isUp)) return
    const load = this.#load()
    for (const { onDemand } of this.#wanted(load))
      if (onDemand !== null && !onDemand.isUp) onDemand.update(this, load)
  }

  #load(): ServerLoad {
    const { atRisk, deadline } = this.#queue.urgency()
    const again = [this.#again, this.#failed, this.#returned].flat().filter(isUnsent)
    return {
      waiting: this.waiting,
      atRisk: atRisk || again.some(({ run }) => this.#atRisk.has(run.batch.id)),
      deadline: again.reduce((first, { run }) => Math.min(first, run.claim.deadline), deadline),
    }
  }

  /** The next line to send; null if no server accepts one now, and then an alarm is set for a server's next opening. */
  next(now: number): Sending | null {
    if (this.unsent === 0) return null
    const next = this.#nextReturned(now) ?? this.#next(now)
    if (next !== null) return next
    let at = this.#route.nextAt(now)
    for (const server of this.#route.servers) at = Math.min(at, server.opensAt(now) ?? at)
    this.#alarm.set(at)
    return null
  }

  #next(now: number): Sending | null {
    const inUse = this.#route.serversInUse(now)
    const isOpen = hasOpenCircuit(inUse)
    const probe = isOpen ? this.#probe(inUse, now, (server) => this.#dueProbe(server, now)) : null
    if (probe !== null) return probe
    const again = this.#nextAgain()
    const avoid = again === null ? null : (again.run.triesOf(again.position)?.avoid ?? null)
    const server = chooseServer(inUse, avoid, now)
    if (server === null)
      return this.#spill(now) ?? (isOpen ? this.#probe(inUse, now, (one) => this.#drawFor(one)) : null)
    const isHeld = again !== null && again === this.#failed[0] && !server.takesAgain
    const peers = this.#route.peersOf(server)
    const ahead = again === null || isHeld ? null : this.#queue.nextBefore(again.run, server, peers)
    const entry = ahead ?? this.#takeAgain(isHeld ? null : again) ?? this.#queue.next(server, peers)
    if (entry !== null) return { run: entry.run, position: entry.position, server }
    if (isHeld) return null
    // No fresh line was left to take turns with.
    this.#sentFailed = false
    return firstOf(this.#failed) === null ? null : this.#next(now)
  }

  /** The next line that was in a queue before; null for a fresh line. */
  #nextAgain(): Entry | null {
    const throttled = firstOf(this.#again)
    if (throttled !== null) return throttled
    const failed = firstOf(this.#failed)
    return failed !== null && this.#sentFailed && this.#queue.entries > 0 ? null : failed
  }

  #takeAgain(again: Entry | null): Entry | null {
    this.#sentFailed = again !== null && again === this.#failed[0]
    if (again === null) return null
    return (this.#sentFailed ? this.#failed : this.#again).shift() ?? null
  }

  /** A line without an answer from a batch API, for the lowest other tier with room. */
  #nextReturned(now: number): Sending | null {
    const entry = firstOf(this.#returned)
    if (entry === null) return null
    const others = this.#forReturned()
    const server = chooseOrProbe(others, now)
    if (server === null) {
      // All of them are down, or closed: it may go wherever lines go.
      if (others.flat().every((one) => one.blocked(now))) this.#again.unshift(this.#returned.shift()!)
      return null
    }
    this.#returned.shift()
    return { ...entry, server }
  }

  /** A line of an at-risk batch, for a tier that is closed to other lines. */
  #spill(now: number): Sending | null {
    if (this.#atRisk.size === 0) return null
    const server = chooseOrProbe(this.#route.serversForAtRisk(now), now)
    const entry = server && this.#nextAtRisk(server)
    return entry && { ...entry, server }
  }

  #nextAtRisk(server: ModelServer): Entry | null {
    for (const queue of [this.#again, this.#failed]) {
      const at = queue.findIndex((entry) => isUnsent(entry) && this.#atRisk.has(entry.run.batch.id))
      if (at !== -1) return queue.splice(at, 1)[0]!
    }
    return this.#queue.nextAtRisk(server, this.#route.peersOf(server))
  }

  /** A line for a server whose circuit is open, if `lineFor` finds one for it. */
  #probe(
    inUse: readonly (readonly ModelServer[])[],
    now: number,
    lineFor: (server: ModelServer) => Entry | null,
  ): Sending | null {
    for (const server of inUse.flat()) {
      if (server.circuit.closed || server.freePlaces(now) === 0) continue
      const entry = lineFor(server)
      if (entry) return { ...entry, server }
    }
    return null
  }

  /** A line that never missed, of a batch that may probe before the pause is over. */
  #drawFor({ circuit }: ModelServer): Entry | null {
    return this.#queue.draw((id) => circuit.mayProbeEarly(id))
  }

  /** A line to probe with: preferably of a batch that did not cause the opening, or a line without misses. */
  #dueProbe(server: ModelServer, now: number): Entry | null {
    if (!server.circuit.probeDue(now)) return null
    const fresh = this.#drawFor(server) ?? this.#queue.draw(() => true)
    if (fresh) return fresh
    const again = this.#nextAgain()
    if (again === null) return null
    const tries = again.run.triesOf(again.position)
    // A line that has failed would otherwise probe one server after the other, and never come to one that answers.
    const isAvoided = tries?.avoid === server || (tries?.count.failures ?? 0) > 0
    if (isAvoided && chooseServer(this.#route.serversInUse(now), server, now)) return null
    return this.#takeAgain(again)
  }

  close(): void {
    this.#alarm.set(Number.POSITIVE_INFINITY)
    this.#leaveServers(this.#route.servers)
  }
}

function isUnsent({ run, position }: Entry): boolean {
  return run.isUnsent(position)
}

/** The first entry that counts; earlier entries are dropped. */
function firstOf(entries: Entry[]): Entry | null {
  while (entries.length > 0) {
    const first = entries[0]!
    if (isUnsent(first)) return first
    entries.shift()
  }
  return null
}

function hasOpenCircuit(tiers: readonly (readonly ModelServer[])[]): boolean {
  for (const servers of tiers) for (const { circuit } of servers) if (!circuit.closed) return true
  return false
}
