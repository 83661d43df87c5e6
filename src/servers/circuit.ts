// The circuit breaker of an upstream. A server that is down gets no lines but probes, and a batch whose lines a server
// cannot answer does not keep other batches' lines from it.
//
//        8 misses in a row, nothing in flight after a throttle, or no connection
//   closed ────────────────────────────────────────────────────────────► open ◄─┐ a probe missed: the pause
//      ▲                                                                   │    │ doubles, up to its most
//      └──────────────── a line was answered ◄──────── probe ◄─────────────┘────┘
//                                                  when the pause is over
//
// - A *miss* is an attempt that failed or was throttled. Only the first miss of a line counts, because a line that
//   missed before may itself be the cause. Misses of a batch that is at fault (`BatchFaults`) do not count. An
//   attempt that did not reach the server (connection refused, no address, no TLS) always counts, and one is enough to open
//   the circuit: no line can be the cause. So does an answer that says that the server is not available (a proxy cannot
//   reach it): a few lines show it too, or one for a second.
// - While the circuit is open, one line at a time *probes* when the pause is over: a line that never missed, if there
//   is one, chosen round robin over projects and from anywhere in its chunk.
// - A circuit that opened because of some batches' lines lets each other batch send one line at once. If the server
//   is unreachable, all batches wait.
// - A server is *up* if its last known response is a recent answer, misses of the line in question aside. A line that
//   breaks a connection to a server that is up is at fault itself.

import type { FailureReason } from '../backends/failure-reason.ts'
import { BoundedMap } from '../domain/bounded-map.ts'

const FAILURES_TO_OPEN = 8
/** The time in ms after which misses of a server that is gone open the circuit, however few lines missed. */
const GONE_MS = {
  unreachable: 0,
  unavailable: 1_000,
  failed: Number.POSITIVE_INFINITY,
  throttled: Number.POSITIVE_INFINITY,
}
const PAUSE_MS_MIN = 500
const PAUSE_MS_MAX = 30_000
/** The longest pause of a server that responds, though with errors. */
const PAUSE_MS_MAX_REACHED = 10_000
/** Longer than any pause that a server may ask for. */
const PAUSE_MS_MOST = 5 * 60_000
/** The time in ms for which a server counts as up after an answer. */
const UP_MS = 60_000
/** The misses in a row after which an answer to a line of another batch shows that the lines were the cause. */
const MISSES_OF_OTHERS = 3
/** The number of batches whose last errors are kept. */
const ERRORS_MAX = 20

export interface Ticket {
  readonly batch_id: string
  /** Whether the line missed before, on any upstream. */
  readonly missedBefore: boolean
  /** An object that identifies the line in all its attempts; read only after a miss. */
  readonly line: object
  /** Unix ms. */
  readonly sentAt: number
  /** The kind of probe. `timed`: after the pause; `early`: of a batch for which the circuit is not open. */
  probing: 'timed' | 'early' | null
}

/** The kinds of misses. `unreachable`: no request reached the server. `unavailable`: it, or a proxy, takes none. */
export type Miss = 'unreachable' | 'unavailable' | 'failed' | 'throttled'

export class Circuit {
  readonly faults = new BatchFaults()
  /** Counted misses since the last answer, and those of them that were failures. */
  #misses = 0
  #failures = 0
  #missedSince: number | null = null
  #lastMiss: Miss | null = null
  /** The line, if all counted misses are misses of one line. */
  #onlyMissed: object | null = null
  readonly #causes = new Set<string>()
  #answeredAt = Number.NEGATIVE_INFINITY
  #open: Miss | null = null
  #openUntil = 0
  #pauseMs = PAUSE_MS_MIN
  #timedProbe = false
  readonly #earlyProbes = new Set<string>()
  readonly #errors = new BoundedMap<string, FailureReason>(ERRORS_MAX)

  /** Whether it is open because of failures; a server that throttles is not down. */
  get open(): boolean {
    return this.#open !== null && this.#open !== 'throttled'
  }

  get closed(): boolean {
    return this.#open === null
  }

  get openKind(): Miss | null {
    return this.#open
  }

  /** The time at which the next probe may be sent; null while closed or while a probe is in flight. */
  get retryAt(): number | null {
    return this.#open === null || this.#timedProbe ? null : this.#openUntil
  }

  /** Misses since the last answer: when the first one was (Unix ms) and the kind of the last one; null if none. */
  get missStreak(): { since: number; last: Miss } | null {
    if (this.#missedSince === null || this.#lastMiss === null) return null
    return { since: this.#missedSince, last: this.#lastMiss }
  }

  /** The error of the last miss of each batch. */
  get errors(): ReadonlyMap<string, FailureReason> {
    return this.#errors
  }

  get answeredAt(): number {
    return this.#answeredAt
  }

  /** Whether the pause is over and a line may probe. */
  probeDue(now: number): boolean {
    if (this.#open === null || this.#timedProbe) return false
    // No pause is that long: the clock was set back.
    return now >= this.#openUntil || this.#openUntil - now > PAUSE_MS_MOST
  }

  /** Whether a line of this batch that never missed may be sent before the pause is over. */
  mayProbeEarly(batch_id: string): boolean {
    if (this.#open === null || this.#open === 'unreachable') return false
    return !this.#causes.has(batch_id) && !this.#earlyProbes.has(batch_id)
  }

  /** Whether no line of the batch, or of any batch, can be sent until the pause is over. */
  blocks(now: number, batch_id?: string): boolean {
    if (this.#open === null || this.probeDue(now)) return false
    return this.#open === 'unreachable' || (batch_id !== undefined && this.#causes.has(batch_id))
  }

  /** Whether several lines, none of this batch, missed in a row: then its answer shows that the server is up. */
  isOnlyOthers(batch_id: string): boolean {
    return this.#misses >= MISSES_OF_OTHERS && !this.#causes.has(batch_id)
  }

  /** Whether the server answers lines, misses of `line` aside. */
  isUp(now: number, line: object): boolean {
    if (now - this.#answeredAt > UP_MS) return false
    return this.#misses === 0 || this.#onlyMissed === line
  }

  onSent(ticket: Ticket): void {
    if (this.#open === null) return
    ticket.probing = this.probeDue(ticket.sentAt) ? 'timed' : 'early'
    if (ticket.probing === 'timed') this.#timedProbe = true
    else this.#earlyProbes.add(ticket.batch_id)
  }

  /** Forgets the past of a server that was started anew. */
  onStarted(): void {
    this.#forgetMisses()
    this.#errors.clear()
  }

  /** Notes an answer, or a rejection of the line's content: in both cases the server is up. */
  onAnswered(ticket: Ticket, now: number): void {
    this.endProbe(ticket)
    this.faults.onAnswered(ticket.batch_id, ticket.sentAt)
    this.#answeredAt = now
    this.#forgetMisses()
    if (this.#errors.size > 0) this.#errors.delete(ticket.batch_id)
  }

  #forgetMisses(): void {
    this.#misses = 0
    this.#failures = 0
    this.#missedSince = null
    this.#lastMiss = null
    this.#onlyMissed = null
    this.#pauseMs = PAUSE_MS_MIN
    if (this.#causes.size > 0) this.#causes.clear()
    this.#open = null
  }

  /** Notes a miss; returns whether it counts against the server. `pauseMs`: the requested time without requests. */
  onMissed(
    ticket: Ticket,
    miss: Miss,
    error: FailureReason,
    now: number,
    pauseMs: number | null = null,
  ): boolean {
    this.endProbe(ticket)
    this.#errors.set(ticket.batch_id, error)
    const counts = this.#counts(ticket, miss)
    if (miss === 'unreachable') this.faults.onUnreachable()
    else if (!ticket.missedBefore) this.faults.onMissed(ticket.batch_id, now)
    if (counts) {
      this.#onlyMissed = this.#misses === 0 || this.#onlyMissed === ticket.line ? ticket.line : null
      this.#misses++
      this.#missedSince ??= now
      this.#lastMiss = miss
      this.#causes.add(ticket.batch_id)
      // A server that throttles is up.
      this.#failures = miss === 'throttled' ? 0 : this.#failures + 1
    }
    if (this.#open !== null) this.#stayOpen(ticket, miss, now, counts ? pauseMs : null)
    else if (counts && pauseMs !== null) this.#openFor(miss, now, pauseMs)
    else if (counts && (this.#failures >= FAILURES_TO_OPEN || now - this.#missedSince! >= GONE_MS[miss]))
      this.#openFor(miss, now, this.#pauseMs)
    return counts
  }

  #counts({ batch_id, missedBefore }: Ticket, miss: Miss): boolean {
    if (miss === 'unreachable') return true
    if (this.faults.isAtFault(batch_id)) return false
    // Throttling depends on the server's capacity, not on the line.
    return !missedBefore || miss !== 'failed'
  }

  #openFor(miss: Miss, now: number, pauseMs: number): void {
    this.#open = miss
    this.#openUntil = now + pauseMs
  }

  #stayOpen({ probing }: Ticket, miss: Miss, now: number, pauseMs: number | null): void {
    if (miss === 'throttled' || pauseMs !== null) {
      if (probing === 'timed' || pauseMs !== null) {
        this.#open = miss
        this.#pauseMs = PAUSE_MS_MIN
        this.#openUntil = Math.max(this.#openUntil, now + (pauseMs ?? PAUSE_MS_MIN))
      }
      return
    }
    if (miss === 'unreachable' || probing === 'timed') this.#open = miss
    if (probing !== 'timed') return
    const most = miss === 'unreachable' ? PAUSE_MS_MAX : PAUSE_MS_MAX_REACHED
    this.#pauseMs = Math.min(this.#pauseMs * 2, most)
    this.#openUntil = now + this.#pauseMs
  }

  /** Ends a probe; the only call for an attempt that the worker aborted, which says nothing about the server. */
  endProbe({ probing, batch_id }: Ticket): void {
    if (probing === 'timed') this.#timedProbe = false
    else if (probing === 'early') this.#earlyProbes.delete(batch_id)
  }
}

// `BatchFaults` decides, for one upstream, whether the server or the lines of a batch cause failed attempts. The results of one batch
// are compared with those of all others: a batch whose lines miss (fail or are throttled) while the lines of other
// batches are answered is at fault.
//
// Only the first miss of a line counts, because a line that missed before may itself be the cause. A miss counts only
// once it is confirmed: a line of another batch, sent after it, was answered, so the server was not down. An overloaded
// or unreliable server treats all batches alike, and then no batch is at fault. When the server is unreachable, all
// counts are reset.

/** The limit of remembered batches; the oldest are forgotten first. */
const BATCHES_MAX = 256
/** The number of lines of a batch beyond which older lines lose weight. */
const LINES_REMEMBERED = 64
/** Confirmed misses of a batch before it can be at fault. */
const MISSES_MIN = 3
/** The misses expected of other batches, at the rate of this batch, before it can be at fault. */
const EXPECTED_MIN = 5
/** The number by which expected misses of the other batches must exceed their actual ones, as a factor. */
const RATIO = 4

interface Tally {
  answered: number
  missed: number
  /** The times of unconfirmed misses (Unix ms, ascending; at most LINES_REMEMBERED). */
  pending: number[]
}

export class BatchFaults {
  readonly #batches = new BoundedMap<string, Tally>(BATCHES_MAX)
  readonly #pending = new Set<string>()

  /** Notes the answer to a line of the batch that was sent at `sentAt` (Unix ms). */
  onAnswered(batch_id: string, sentAt: number): void {
    for (const other of this.#pending) {
      if (other === batch_id) continue
      const tally = this.#batches.get(other) ?? newTally()
      const later = tally.pending.findIndex((at) => at > sentAt)
      const confirmed = later === -1 ? tally.pending.length : later
      if (confirmed === tally.pending.length) this.#pending.delete(other)
      tally.pending.splice(0, confirmed)
      tally.missed += confirmed
      fade(tally)
    }
    const own = this.#tally(batch_id)
    own.answered++
    fade(own)
  }

  /** Notes the first miss of a line of the batch. */
  onMissed(batch_id: string, now: number): void {
    const own = this.#tally(batch_id)
    if (own.pending.length < LINES_REMEMBERED) own.pending.push(now)
    this.#pending.add(batch_id)
  }

  /** Forgets all misses of a server that is unreachable: its shutdown may have caused them. */
  onUnreachable(): void {
    this.#batches.clear()
    this.#pending.clear()
  }

  /** Whether the batch's own lines make the server fail. */
  isAtFault(batch_id: string): boolean {
    const own = this.#batches.get(batch_id)
    if (!own || own.missed < MISSES_MIN) return false
    const rate = rateOf(own)
    let lines = 0
    let missed = 0
    for (const [other, tally] of this.#batches) {
      const bad = tally.missed + tally.pending.length
      // Batches with a similar rate may be at fault themselves and are left out of the comparison.
      if (other === batch_id || (bad >= MISSES_MIN && rateOf(tally) >= rate / 2)) continue
      lines += tally.answered + bad
      missed += bad
    }
    const expected = rate * lines
    return expected >= EXPECTED_MIN && missed * RATIO <= expected
  }

  /** Whether no line of a batch at fault was ever answered. */
  isHopeless(batch_id: string): boolean {
    return this.isAtFault(batch_id) && this.#batches.get(batch_id)?.answered === 0
  }

  #tally(batch_id: string): Tally {
    const known = this.#batches.get(batch_id)
    if (known) return known
    const tally = newTally()
    this.#batches.set(batch_id, tally)
    return tally
  }
}

function newTally(): Tally {
  return { answered: 0, missed: 0, pending: [] }
}

function rateOf({ answered, missed }: Tally): number {
  return missed / Math.max(1, answered + missed)
}

function fade(tally: Tally): void {
  if (tally.answered + tally.missed <= LINES_REMEMBERED) return
  tally.answered /= 2
  tally.missed /= 2
}
