// A model server that answers other requests than lines, as all upstreams of this worker see it that are behind it: the
// lines that they have in flight there together, and the share that those may be.
import type { ServerTraffic } from '../../backends/backend.ts'
import { LiveShare, type LiveTerms } from './live-share.ts'
import { TrafficCheck } from './traffic-check.ts'

/** While nothing is to be sent, it is read this often, to know what is usual. */
const IDLE_READ_MS = 3_000
const READ_MS = 500
/** After so long without a place, lines are not kept ready for it. */
const TAKEN_MS = 5_000

/** What other workers have in flight at it. */
export interface Others {
  inFlight: number
  /** Those workers that have any. */
  workers: number
}

export class LiveServer {
  readonly share: LiveShare
  readonly #check = new TrafficCheck()
  #inFlight = 0
  #readAt = Number.NEGATIVE_INFINITY
  #reading = false
  /** Since when there has been no place for a line. */
  #fullSince: number | null = null
  /** How often a reading left room for fewer lines than were in flight. */
  backOffs = 0
  #isOver = false
  /** As it was read last; null while it says nothing. */
  traffic: ServerTraffic | null = null

  constructor(terms: LiveTerms) {
    this.share = new LiveShare(terms)
  }

  begin(): void {
    this.#inFlight++
  }

  /** `tokens` of an answer; null where there is none. */
  end(tookMs: number, tokens: number | null): void {
    this.#inFlight--
    if (tokens !== null) this.share.answered(tookMs, tokens)
  }

  /** How many readings had what no server can have, or what the next one did not confirm. */
  get rejected(): number {
    return this.#check.rejected
  }

  get inFlight(): number {
    return this.#inFlight
  }

  /** What an upstream may have in flight that has `mine` of it now. */
  places(mine: number, now: number): number {
    return Math.max(0, this.share.places(now) - (this.#inFlight - mine))
  }

  /** Since when other requests have taken all of it, if they have for a while (Unix ms); else null. */
  takenSince(now: number): number | null {
    return this.#fullSince !== null && now - this.#fullSince >= TAKEN_MS ? this.#fullSince : null
  }

  isDue(now: number, isWanted: boolean): boolean {
    return !this.#reading && now - this.#readAt >= (isWanted ? READ_MS : IDLE_READ_MS) - READ_MS / 5
  }

  /** Reads it and sets the share; `others` is asked beforehand, as what is read is to be the latest. */
  async read(
    readTraffic: (() => Promise<ServerTraffic | null>) | undefined,
    others: Others,
    now: () => number,
  ): Promise<void> {
    this.#readAt = now()
    this.#reading = true
    let read: ServerTraffic | null
    try {
      read = (await readTraffic?.()) ?? null
    } finally {
      this.#reading = false
    }
    const own = { inFlight: this.#inFlight, others: others.inFlight, workers: 1 + others.workers }
    const { traffic, isConfirmed } = this.#check.check(read, own.inFlight + own.others, now())
    this.traffic = traffic
    if (traffic) this.share.read(traffic, own, now(), isConfirmed)
    else this.share.unread(own, now())
    const isOver = this.share.current < this.#inFlight
    if (isOver && !this.#isOver) this.backOffs++
    this.#isOver = isOver
    this.#fullSince = this.share.current > 0 ? null : (this.#fullSince ?? now())
  }
}
