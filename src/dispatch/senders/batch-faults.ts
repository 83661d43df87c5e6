// Decides, for one upstream, whether the server or the lines of a batch cause failed attempts. The results of one batch
// are compared with those of all others: a batch whose lines miss (fail or are throttled) while the lines of other
// batches are answered is at fault.
//
// Only the first miss of a line counts, because a line that missed before may itself be the cause. A miss counts only
// once it is confirmed: a line of another batch, sent after it, was answered, so the server was not down. An overloaded
// or unreliable server treats all batches alike, and then no batch is at fault. When the server is unreachable, all
// counts are reset.

/** Batches remembered at most; the oldest are forgotten first. */
const BATCHES_MAX = 256
/** Beyond so many lines of a batch, older ones lose weight. */
const LINES_REMEMBERED = 64
/** Confirmed misses of a batch before it can be at fault. */
const MISSES_MIN = 3
/** Expected misses of the other batches, if they missed at the rate of this batch, before it can be at fault. */
const EXPECTED_MIN = 5
/** How many times fewer misses the other batches must have than expected. */
const RATIO = 4

interface Tally {
  answered: number
  missed: number
  /** The times of unconfirmed misses (Unix ms, ascending; at most LINES_REMEMBERED). */
  pending: number[]
}

export class BatchFaults {
  readonly #batches = new Map<string, Tally>()
  readonly #pending = new Set<string>()

  /** A line of the batch was answered that had been sent at `sentAt` (Unix ms). */
  onAnswered(batch_id: string, sentAt: number): void {
    for (const other of this.#pending) {
      if (other === batch_id) continue
      const tally = this.#batches.get(other)!
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

  /** A line of the batch missed that had not missed before. */
  onMissed(batch_id: string, now: number): void {
    const own = this.#tally(batch_id)
    if (own.pending.length < LINES_REMEMBERED) own.pending.push(now)
    this.#pending.add(batch_id)
  }

  /** The server is unreachable: earlier misses may have been caused by its shutdown. */
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

  /** Whether nothing of a batch that is at fault was ever answered. */
  isHopeless(batch_id: string): boolean {
    return this.isAtFault(batch_id) && this.#batches.get(batch_id)?.answered === 0
  }

  #tally(batch_id: string): Tally {
    const known = this.#batches.get(batch_id)
    if (known) return known
    const tally: Tally = { answered: 0, missed: 0, pending: [] }
    this.#batches.set(batch_id, tally)
    if (this.#batches.size > BATCHES_MAX) {
      const [first] = this.#batches.keys()
      this.#batches.delete(first!)
      this.#pending.delete(first!)
    }
    return tally
  }
}

function rateOf({ answered, missed }: Tally): number {
  return missed / Math.max(1, answered + missed)
}

function fade(tally: Tally): void {
  if (tally.answered + tally.missed <= LINES_REMEMBERED) return
  tally.answered /= 2
  tally.missed /= 2
}
