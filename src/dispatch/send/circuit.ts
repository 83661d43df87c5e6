// Whether lines are sent to an upstream. The promise: a server that is down is left alone, and a batch whose lines a
// server cannot answer keeps nobody else's lines from it.
//
//            8 misses in a row, or nothing in flight after a throttle
//   closed ────────────────────────────────────────────────────────────► open ◄─┐ a probe missed: the pause
//      ▲                                                                   │    │ doubles, up to its most
//      └──────────────── a line was answered ◄──────── probe ◄─────────────┘────┘
//                                                  when the pause is over
//
// - A *miss* is an attempt that failed or was throttled. Only the first miss of a line counts: a line that missed
//   before proves nothing by missing again. Misses of a batch that is at fault (batch-faults.ts) count for nothing.
//   An attempt that reached nobody (refused, no route) always counts: no line can be the cause.
// - While it is open, one line at a time *probes* when the pause is over: a line that never missed, of projects by
//   turns and from anywhere in its chunk; one that missed only where there is no other.
// - Open because of some batches' lines, it is not open for the others: each batch that was not among them may send
//   one line at once. Only where a server cannot be reached at all, everybody waits.
// - *Up* means that the last thing known of the server is an answer, and not long ago; what a line itself met does
//   not count there. A line that breaks a connection to a server that is up is at fault itself.
import { BatchFaults } from './batch-faults.ts'

const FAILURES_TO_OPEN = 8
const PAUSE_MS_MIN = 500
const PAUSE_MS_MAX = 30_000
/** Of a server that does answer, though with errors. */
const PAUSE_MS_MAX_REACHED = 10_000
/** An answer says that a server is up for so long. */
const UP_MS = 60_000
/** Misses in a row that an answer to somebody else's line puts down to the lines. */
const MISSES_OF_OTHERS = 3
/** Batches of which the last error is kept. */
const ERRORS_MAX = 20

/** What the circuit knows a line by. */
export interface Probe {
  batch_id: string
  /** Whether it missed before, on whichever upstream. */
  missedBefore: boolean
  /** The same for all attempts of a line, and of no other. */
  line: object
}

/** An attempt under way. */
export interface Ticket extends Probe {
  sentAt: number
  /** `timed`: the one line for which the pause ended; `early`: of a batch for which it is not open. */
  probing: 'timed' | 'early' | null
}

/** `unreachable`: the request reached nobody. */
export type Miss = 'unreachable' | 'failed' | 'throttled'

/** Why it is open: nobody there, lines that failed, or the server asked to wait. */
export type OpenKind = Miss

export class Circuit {
  readonly #faults = new BatchFaults()
  /** Misses that count, of lines that were not answered since; and those that opened it or kept it open. */
  #misses = 0
  #failures = 0
  #missedSince: number | null = null
  #lastMiss: Miss | null = null
  /** The line, if all misses were of one. */
  #onlyMissed: object | null = null
  readonly #causes = new Set<string>()
  #answeredAt = Number.NEGATIVE_INFINITY
  #open: OpenKind | null = null
  #openUntil = 0
  #openedAt: number | null = null
  #pauseMs = PAUSE_MS_MIN
  #timedProbe = false
  readonly #earlyProbes = new Set<string>()
  /** By batch: what was said when a line of it missed last. */
  readonly #errors = new Map<string, string>()

  /** Whether it is open because of failures; asked to wait, a server is not down. */
  get open(): boolean {
    return this.#open !== null && this.#open !== 'throttled'
  }

  get closed(): boolean {
    return this.#open === null
  }

  get openKind(): OpenKind | null {
    return this.#open
  }

  /** Since when nothing has gone through (Unix ms); null while closed. */
  get openedAt(): number | null {
    return this.open ? this.#openedAt : null
  }

  /** When a probe may next be sent; null while closed or while the probe is out. */
  get retryAt(): number | null {
    return this.#open === null || this.#timedProbe ? null : this.#openUntil
  }

  /** The first miss that nothing better has followed (Unix ms), and of which kind the last one is; null if none. */
  get trouble(): { since: number; last: Miss } | null {
    if (this.#missedSince === null || this.#lastMiss === null) return null
    return { since: this.#missedSince, last: this.#lastMiss }
  }

  /** By batch whose lines miss here: what was said of the last one. */
  get errors(): ReadonlyMap<string, string> {
    return this.#errors
  }

  get answeredAt(): number {
    return this.#answeredAt
  }

  /** Whether the pause is over, and any line may probe. */
  probeDue(now: number): boolean {
    return this.#open !== null && !this.#timedProbe && now >= this.#openUntil
  }

  /** Whether a line of this batch that never missed may be sent before the pause is over. */
  mayProbeEarly(batch_id: string): boolean {
    if (this.#open === null || this.#open === 'unreachable') return false
    return !this.#causes.has(batch_id) && !this.#earlyProbes.has(batch_id)
  }

  /** Whether nothing of the batch can be sent until time has passed; without one, nothing of any batch. */
  blocks(now: number, batch_id?: string): boolean {
    if (this.#open === null || this.probeDue(now)) return false
    return this.#open === 'unreachable' || (batch_id !== undefined && this.#causes.has(batch_id))
  }

  /** Whether several lines missed in a row, and none of this batch: an answer to it tells that the server is there. */
  isOnlyOthers(batch_id: string): boolean {
    return this.#misses >= MISSES_OF_OTHERS && !this.#causes.has(batch_id)
  }

  /** Whether the batch's own lines make the server fail. */
  isAtFault(batch_id: string): boolean {
    return this.#faults.isAtFault(batch_id)
  }

  /** The same, of a batch of which no line was answered here. */
  isHopeless(batch_id: string): boolean {
    return this.#faults.isHopeless(batch_id)
  }

  /** Whether the server answers lines; `line`: its own misses aside. */
  isUp(now: number, line: object): boolean {
    if (now - this.#answeredAt > UP_MS) return false
    return this.#misses === 0 || this.#onlyMissed === line
  }

  onSent(probe: Probe, now: number): Ticket {
    const probing = this.#open === null ? null : this.probeDue(now) ? 'timed' : 'early'
    if (probing === 'timed') this.#timedProbe = true
    if (probing === 'early') this.#earlyProbes.add(probe.batch_id)
    return { ...probe, sentAt: now, probing }
  }

  /** Answered, or refused for what it asks: either way the server is there. */
  onAnswered(ticket: Ticket, now: number): void {
    this.#endProbe(ticket)
    this.#faults.onAnswered(ticket.batch_id, ticket.sentAt)
    this.#answeredAt = now
    this.#misses = 0
    this.#failures = 0
    this.#missedSince = null
    this.#lastMiss = null
    this.#onlyMissed = null
    this.#pauseMs = PAUSE_MS_MIN
    if (this.#errors.size > 0) this.#errors.delete(ticket.batch_id)
    if (this.#causes.size > 0) this.#causes.clear()
    this.#open = null
    this.#openedAt = null
  }

  /**
   * True if the miss counts as one of the server. `pauseMs`: how long the server is to be left alone, if it has
   * asked for that, or has no room at all.
   */
  onMissed(ticket: Ticket, miss: Miss, error: string, now: number, pauseMs: number | null = null): boolean {
    this.#endProbe(ticket)
    this.#note(ticket.batch_id, error)
    const counts = this.#counts(ticket, miss)
    if (miss === 'unreachable') this.#faults.onUnreachable()
    else if (!ticket.missedBefore) this.#faults.onMissed(ticket.batch_id, now)
    if (counts) {
      this.#onlyMissed = this.#misses === 0 || this.#onlyMissed === ticket.line ? ticket.line : null
      this.#misses++
      this.#missedSince ??= now
      this.#lastMiss = miss
      this.#causes.add(ticket.batch_id)
      // A server that has no room is there.
      this.#failures = miss === 'throttled' ? 0 : this.#failures + 1
    }
    if (this.#open !== null) this.#stayOpen(ticket, miss, now, counts ? pauseMs : null)
    else if (counts && pauseMs !== null) this.#openFor(miss, now, pauseMs)
    else if (counts && this.#failures >= FAILURES_TO_OPEN) this.#openFor(miss, now, this.#pauseMs)
    return counts
  }

  /** The attempt was withdrawn before it said anything. */
  onAborted(ticket: Ticket): void {
    this.#endProbe(ticket)
  }

  #counts({ batch_id, missedBefore }: Ticket, miss: Miss): boolean {
    if (miss === 'unreachable') return true
    if (this.#faults.isAtFault(batch_id)) return false
    // How much room there is, every line may learn.
    return !missedBefore || miss === 'throttled'
  }

  #openFor(miss: Miss, now: number, pauseMs: number): void {
    this.#open = miss
    this.#openedAt = now
    this.#openUntil = now + pauseMs
  }

  #stayOpen({ probing }: Ticket, miss: Miss, now: number, pauseMs: number | null): void {
    if (miss === 'throttled') {
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

  #endProbe({ probing, batch_id }: Ticket): void {
    if (probing === 'timed') this.#timedProbe = false
    else if (probing === 'early') this.#earlyProbes.delete(batch_id)
  }

  #note(batch_id: string, error: string): void {
    this.#errors.delete(batch_id)
    this.#errors.set(batch_id, error)
    if (this.#errors.size <= ERRORS_MAX) return
    const [first] = this.#errors.keys()
    this.#errors.delete(first!)
  }
}
