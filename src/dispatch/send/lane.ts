// The queue of lines for one model. fair-queue.ts decides which line is next; the lines of a chunk are sent in the
// given order (by prompt prefix). Lines that wait for a retry occupy no slot. When they are due, throttled lines go
// before fresh ones; failed lines alternate with fresh ones, so that lines that keep failing get at most half of the
// slots. tiers.ts and choose-upstream.ts say where a line goes, and circuit.ts which lines are sent to an upstream whose
// circuit is open.

import type { Attempt } from '../../audit/line-record.ts'
import type { ServerLoad } from '../../backends/backend.ts'
import type { Clock } from '../../domain/clock.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import { chooseUpstream } from './choose-upstream.ts'
import { FairQueue } from './fair-queue.ts'
import { noTries, type TryCount } from './retry-policy.ts'
import { NO_SPILL, type Spill, Tiers } from './tiers.ts'
import type { Upstream } from './upstream.ts'

/** An unfinished line: fresh, in flight, or waiting for its next attempt. */
export interface Job {
  chunk: OpenChunk
  /** Index into `chunk.lines`. */
  position: number
  tries: TryCount
  attempts: Attempt[]
  attemptsOmitted: number
  /** Where the last attempt failed: the next one goes to another upstream if possible. */
  avoid: Upstream | null
}

/** A line without an attempt. */
export function freshJob(chunk: OpenChunk, position: number): Job {
  return {
    chunk,
    position,
    tries: noTries(),
    attempts: [],
    attemptsOmitted: 0,
    avoid: null,
  }
}

export interface Waiting {
  job: Job
  due: number
}

/** What a server is told that no line may be sent to. */
const NO_LOAD: ServerLoad = { waiting: 0, atRisk: false, deadline: Number.POSITIVE_INFINITY }

export class Lane {
  readonly model: string
  #upstreams: readonly Upstream[]
  #tiers: Tiers<Upstream>
  readonly #clock: Clock
  readonly #send: (job: Job, upstream: Upstream) => void
  readonly #maySend: () => boolean
  readonly #queue = new FairQueue()
  /** By due time. */
  readonly #retries: Waiting[] = []
  /** Lines that a batch API left without an answer, for any other upstream. */
  #left: Job[] = []
  /** Whether the last line sent was one that had failed. */
  #sentFailed = false
  #atRisk: ReadonlySet<string> = new Set()
  #cancelAlarm: (() => void) | null = null
  #alarmAt = Number.POSITIVE_INFINITY

  constructor(
    model: string,
    upstreams: readonly Upstream[],
    clock: Clock,
    send: (job: Job, upstream: Upstream) => void,
    maySend: () => boolean = () => true,
    spill: Spill = NO_SPILL,
  ) {
    this.model = model
    this.#upstreams = upstreams
    this.#tiers = new Tiers(upstreams, spill)
    this.#clock = clock
    this.#send = send
    this.#maySend = maySend
    this.#watchServers(upstreams)
  }

  #watchServers(upstreams: readonly Upstream[]): void {
    for (const { onDemand } of upstreams) onDemand?.onChange(() => this.pump())
  }

  /** Lines that are not in flight, including those that wait for a retry. */
  get waiting(): number {
    return this.#queue.waiting + this.#retries.length + this.#left.length
  }

  /** Whether lines that wait begin alike. */
  get sharesBeginnings(): boolean {
    return this.#queue.sharesBeginnings
  }

  get upstreams(): readonly Upstream[] {
    return this.#upstreams
  }

  /** What is configured from now on; lines in flight at other upstreams end there. */
  setUpstreams(upstreams: readonly Upstream[], spill: Spill): void {
    this.#watchServers(upstreams.filter((one) => !this.#upstreams.includes(one)))
    this.#upstreams = upstreams
    this.#tiers = new Tiers(upstreams, spill)
  }

  /** The upstreams that any line may be sent to. */
  get inUse(): readonly Upstream[] {
    return this.#tiers.inUse(this.#clock.now()).flat()
  }

  get concurrency(): number {
    const now = this.#clock.now()
    const used = this.#atRisk.size > 0 ? [...this.inUse, ...this.#tiers.forAtRisk(now).flat()] : this.inUse
    return used.reduce((sum, one) => sum + one.concurrency(now), 0)
  }

  get inFlight(): number {
    return this.#upstreams.reduce((sum, upstream) => sum + upstream.limit.inFlight, 0)
  }

  /** Whether no line, or no line of one batch, can be sent until a circuit's pause is over. */
  blocked(now: number, batch_id?: string): boolean {
    if (
      !this.#tiers
        .inUse(now)
        .flat()
        .every((upstream) => upstream.blocked(now, batch_id))
    )
      return false
    return batch_id === undefined || !this.#atRisk.has(batch_id) || !this.takesAtRisk(now, batch_id)
  }

  /** Whether lines of at-risk batches, or of one of them, may be sent though others may not. */
  takesAtRisk(now: number, batch_id?: string): boolean {
    if (this.#atRisk.size === 0) return false
    return !this.#tiers
      .forAtRisk(now)
      .flat()
      .every((upstream) => upstream.blocked(now, batch_id))
  }

  /** Adds lines of a chunk, in the order of their prompts. */
  add(chunk: OpenChunk, positions: readonly number[]): void {
    this.#queue.add(chunk, positions)
  }

  /** From now on, the batches that may miss their deadline. */
  prioritize(batchIds: ReadonlySet<string>): void {
    this.#atRisk = batchIds
    this.#queue.prioritize(batchIds)
  }

  /** Removes the chunk's lines that are not in flight. */
  remove(chunk: OpenChunk): { fresh: number[]; tried: Waiting[] } {
    const fresh = this.#queue.remove(chunk)
    const tried: Waiting[] = []
    for (let at = this.#retries.length - 1; at >= 0; at--) {
      const waiting = this.#retries[at]!
      if (waiting.job.chunk !== chunk) continue
      this.#retries.splice(at, 1)
      tried.push(waiting)
    }
    for (const job of this.#left) if (job.chunk === chunk) tried.push({ job, due: 0 })
    this.#left = this.#left.filter((job) => job.chunk !== chunk)
    return { fresh, tried }
  }

  /** Whether lines that this upstream left unfinished may go to another one. */
  mayLeave(upstream: Upstream): boolean {
    return this.#tiers.besides(upstream).length > 0
  }

  /** Whether servers that answer at once may answer lines that a batch API may answer too late. */
  mayReplace(upstream: Upstream): boolean {
    const now = this.#clock.now()
    return this.#tiers.insteadOf(upstream).some((one) => one.batches === null && !one.blocked(now))
  }

  retry(job: Job, due: number): void {
    if (job.avoid !== null && job.avoid.batches !== null && this.mayLeave(job.avoid)) {
      this.#left.push(job)
      return
    }
    let at = this.#retries.length
    while (at > 0 && this.#retries[at - 1]!.due > due) at--
    this.#retries.splice(at, 0, { job, due })
  }

  /** To be called about once a second: servers that run on demand learn what waits for them. */
  updateServers(): void {
    const wanted = this.#wanted(this.#load())
    for (const upstream of this.#upstreams)
      upstream.onDemand?.update(this, wanted.includes(upstream) ? this.#load() : NO_LOAD)
  }

  /** The upstreams that lines may be sent to, or could be if their servers were up. */
  #wanted({ atRisk }: ServerLoad): readonly Upstream[] {
    const now = this.#clock.now()
    const tiers = [...this.#tiers.inUse(now), ...this.#forLeft()]
    if (atRisk) tiers.push(...this.#tiers.forAtRisk(now))
    return tiers.flat().filter((upstream) => upstream.placesAllowed(now) > 0)
  }

  /** Where the first line may be sent that a batch API left unfinished. */
  #forLeft(): readonly (readonly Upstream[])[] {
    const avoid = this.#left[0]?.avoid ?? null
    return avoid === null ? [] : this.#tiers.besides(avoid)
  }

  #wakeServers(): void {
    if (this.#upstreams.every(({ onDemand }) => onDemand === null || onDemand.isUp)) return
    for (const { onDemand } of this.#wanted(this.#load()))
      if (onDemand !== null && !onDemand.isUp) onDemand.update(this, this.#load())
  }

  #load(): ServerLoad {
    const { atRisk, deadline: ofFresh } = this.#queue.urgency()
    const deadline = this.#retries.reduce(
      (first, { job }) => Math.min(first, job.chunk.claim.deadline),
      ofFresh,
    )
    return { waiting: this.waiting, atRisk, deadline }
  }

  /** Sends as many lines as the upstreams accept now, and sets an alarm for when more may be sent. */
  pump(): void {
    if (!this.#maySend()) return
    if (this.waiting > 0) this.#wakeServers()
    const now = this.#clock.now()
    while (this.waiting > 0 && this.#sendOne(now)) {
      // Until no upstream accepts another line.
    }
    if (this.waiting > 0) this.#setAlarm(now)
  }

  /** Sends a line that a batch API left unfinished to the lowest other tier that has room. */
  #sendLeft(now: number): boolean {
    const job = this.#left[0]
    if (!job) return false
    const others = this.#forLeft()
    const upstream = chooseOrProbe(others, now)
    if (!upstream) {
      // All of them are down, or closed: it may go wherever lines go.
      if (!others.flat().every((one) => one.blocked(now))) return false
      this.#left.shift()
      this.#retries.unshift({ job, due: now })
      return false
    }
    this.#left.shift()
    this.#send(job, upstream)
    return true
  }

  #sendOne(now: number): boolean {
    if (this.#sendLeft(now)) return true
    const inUse = this.#tiers.inUse(now)
    if (this.#probe(inUse, now, (upstream) => this.#dueProbe(upstream, now))) return true
    const upstream = chooseUpstream(inUse, this.#dueRetry(now)?.avoid ?? null, now)
    if (!upstream) return this.#spill(now) || this.#probe(inUse, now, (one) => this.#earlyProbe(one))
    const job = this.#next(now, upstream)
    if (job) this.#send(job, upstream)
    return job !== null
  }

  /** Sends a line of an at-risk batch to a tier that others may not use. */
  #spill(now: number): boolean {
    if (this.#atRisk.size === 0) return false
    const higher = this.#tiers.forAtRisk(now)
    if (higher.length === 0) return false
    const upstream = chooseOrProbe(higher, now)
    if (!upstream) return false
    const job = this.#nextAtRisk(now, upstream)
    if (job) this.#send(job, upstream)
    return job !== null
  }

  #nextAtRisk(now: number, upstream: Upstream): Job | null {
    const at = this.#retries.findIndex(({ job, due }) => due <= now && this.#atRisk.has(job.chunk.batch.id))
    if (at !== -1) return this.#retries.splice(at, 1)[0]!.job
    const next = this.#queue.nextAtRisk(upstream, this.#tiers.of(upstream))
    return next && freshJob(next.chunk, next.position)
  }

  /** Sends one line to an upstream whose circuit is open, if `lineFor` finds one for it. */
  #probe(
    inUse: readonly (readonly Upstream[])[],
    now: number,
    lineFor: (upstream: Upstream) => Job | null,
  ): boolean {
    for (const upstream of inUse.flat()) {
      if (upstream.circuit.closed || upstream.freePlaces(now) === 0) continue
      const job = lineFor(upstream)
      if (!job) continue
      this.#send(job, upstream)
      return true
    }
    return false
  }

  /** A line to probe with: preferably of a batch that did not cause the opening, or a line that has not missed. */
  #dueProbe(upstream: Upstream, now: number): Job | null {
    if (!upstream.circuit.probeDue(now)) return null
    const fresh = this.#queue.draw((id) => upstream.circuit.mayProbeEarly(id)) ?? this.#queue.draw(() => true)
    if (fresh) return freshJob(fresh.chunk, fresh.position)
    const due = this.#dueRetry(now)
    if (!due || (due.avoid === upstream && chooseUpstream(this.#tiers.inUse(now), upstream, now))) return null
    return this.#retries.shift()!.job
  }

  #earlyProbe({ circuit }: Upstream): Job | null {
    const fresh = this.#queue.draw((id) => circuit.mayProbeEarly(id))
    return fresh && freshJob(fresh.chunk, fresh.position)
  }

  close(): void {
    this.#cancelAlarm?.()
    this.#cancelAlarm = null
  }

  #dueRetry(now: number): Job | null {
    const first = this.#retries[0]
    return first && first.due <= now ? first.job : null
  }

  #next(now: number, upstream: Upstream): Job | null {
    const due = this.#dueRetry(now)
    const hasFailed = due !== null && due.tries.failures > 0
    if (due && !(hasFailed && this.#sentFailed && this.#queue.waiting > 0)) {
      this.#sentFailed = hasFailed
      return this.#retries.shift()!.job
    }
    this.#sentFailed = false
    const next = this.#queue.next(upstream, this.#tiers.of(upstream))
    return next && freshJob(next.chunk, next.position)
  }

  #setAlarm(now: number): void {
    let at = this.#tiers.nextAt(now)
    const first = this.#retries[0]
    if (first && first.due > now) at = first.due
    if (this.waiting > 0)
      for (const upstream of this.#upstreams) at = Math.min(at, upstream.opensAt(now) ?? at)
    if (at === this.#alarmAt && this.#cancelAlarm) return
    this.#cancelAlarm?.()
    this.#cancelAlarm = null
    this.#alarmAt = at
    if (at === Number.POSITIVE_INFINITY) return
    this.#cancelAlarm = this.#clock.after(at - now, () => {
      this.#cancelAlarm = null
      this.pump()
    })
  }
}

/** Of tiers that lines go to only now and then: one whose circuit is open is probed by them, or would stay open. */
function chooseOrProbe(tiers: readonly (readonly Upstream[])[], now: number): Upstream | null {
  const probed = tiers.flat().find((one) => one.circuit.probeDue(now) && one.freePlaces(now) > 0)
  return probed ?? chooseUpstream(tiers, null, now)
}
