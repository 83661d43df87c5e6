// Keeps what no server can have out of what is learned of a server. Numbers of a metrics page that are impossible are dropped:
// without the requests nothing is left of a reading. A number of requests that is possible and out of all proportion is
// obeyed at once, and learned when it has lasted: what is learned of a server stays for hours, and errors are short.
import type { ServerTraffic } from '../../backends/backend.ts'

const RUNNING_MAX = 16_384
const WAITING_MAX = 1_000_000
/** Caches are rounded here and there. */
const CACHE_MAX = 1.01
const TOKENS_MAX = Number.MAX_SAFE_INTEGER
/** So many tokens at once, and per millisecond since the last reading. */
const TOKENS_AT_ONCE_MAX = 100_000
const TOKENS_PER_MS_MAX = 10_000
/** Others are out of proportion when they are so many times as many as their highest number of late, and so many more. */
const BURST_FACTOR = 8
const BURST_MORE = 256
const HIGHEST_HALF_LIFE_MS = 6 * 3_600_000
/** What has lasted for so long is true. */
const CONFIRMED_MS = 60_000

interface CheckedTraffic {
  /** Null where nothing of the reading is usable. */
  traffic: ServerTraffic | null
  /** Whether it is to be learned from. */
  isConfirmed: boolean
}

export class TrafficCheck {
  /** How many readings had something that was dropped, or was not learned. */
  rejected = 0
  /** As it was read last. */
  #tokens: { count: number; at: number } | null = null
  /** Of what was learned. */
  #highest: { others: number; at: number } | null = null
  #burstSince: number | null = null

  /** `ours`: lines in flight at the server, of all workers. */
  check(read: ServerTraffic | null, ours: number, now: number): CheckedTraffic {
    if (read === null) return { traffic: null, isConfirmed: false }
    const { running, waiting } = read
    if (!isWithin(running, RUNNING_MAX) || !isWithin(waiting, WAITING_MAX)) {
      this.rejected++
      return { traffic: null, isConfirmed: false }
    }
    const cache = read.cache !== null && isWithin(read.cache, CACHE_MAX) ? Math.min(1, read.cache) : null
    const tokens = this.#isPossible(read.tokens, now) ? read.tokens : null
    const isConfirmed = this.#isConfirmed(Math.max(0, running + waiting - ours), now)
    const isWhole = (cache !== null || read.cache === null) && tokens === read.tokens
    if (!isWhole || !isConfirmed) this.rejected++
    return { traffic: { running, waiting, cache, tokens }, isConfirmed }
  }

  #isConfirmed(others: number, now: number): boolean {
    const { others: highest, at } = this.#highest ?? { others, at: now }
    if (others > BURST_FACTOR * highest + BURST_MORE) {
      this.#burstSince ??= now
      if (now - this.#burstSince < CONFIRMED_MS) return false
    }
    this.#burstSince = null
    const left = highest * 2 ** ((at - now) / HIGHEST_HALF_LIFE_MS)
    this.#highest = { others: Math.max(others, left), at: now }
    return true
  }

  /** A counter of tokens starts anew with its server. */
  #isPossible(count: number | null, now: number): boolean {
    const last = this.#tokens
    this.#tokens = count === null || !isWithin(count, TOKENS_MAX) ? null : { count, at: now }
    if (this.#tokens === null || last === null) return this.#tokens !== null
    const most = TOKENS_AT_ONCE_MAX + TOKENS_PER_MS_MAX * Math.max(0, now - last.at)
    return this.#tokens.count - last.count <= most
  }
}

function isWithin(value: number, most: number): boolean {
  return value >= 0 && value <= most
}
