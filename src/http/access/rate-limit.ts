// Limits the calls per minute of each key and of each project, over all API processes: a token bucket that holds a
// minute's calls and refills evenly, so a caller that has used them up waits for the next call, not for the next
// minute. Each process leases portions of the bucket from the database and counts them down in memory (quota leasing):
// all processes together never pass the limit, and few calls cost a write. The emptier the bucket, the smaller the
// portion. A portion that is not used within a minute is lost.
import type { Clock } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { type Bucket, takeCalls } from '../../store/calls.ts'
import type { Store } from '../../store/store.ts'

const MINUTE_MS = 60_000
/** The share of a bucket's remaining calls that one portion leases. */
const PORTION_SHARE = 0.05
/** The time in ms after which an empty bucket is read again. */
const RECHECK_MS = 50

interface RateLimitStatus {
  headers: Record<string, string>
  /** The error of the call; undefined while calls are left. */
  apiError: ApiError | undefined
}

/** The calls leased from the bucket of a key or a project; times on this process's clock, Unix ms. */
interface Portion {
  /** The number of leased calls that are left; they expire at `ends`. */
  left: number
  ends: number
  /** The time when the bucket will be full if no more calls are leased. */
  fullAt: number
  /** The time before which an empty bucket is not read again. */
  empty_until: number
}

/** The owner of the calls that are counted together. */
export type Counted = 'key' | 'project'

export class RateLimit {
  readonly #counted: Counted
  readonly #store: Pick<Store, 'writeAsyncCommit'>
  readonly #clock: Clock
  readonly #bucket: Bucket
  readonly #portions = new Map<string, Portion>()
  readonly #leasing = new Map<string, Promise<void>>()
  #forgetAt = 0

  constructor(
    store: Pick<Store, 'writeAsyncCommit'>,
    clock: Clock,
    requests_per_minute: number,
    counted: Counted = 'key',
  ) {
    this.#counted = counted
    this.#store = store
    this.#clock = clock
    const interval_us = Math.max(1, Math.round((MINUTE_MS * 1000) / requests_per_minute))
    this.#bucket = { calls_max: requests_per_minute, interval_us }
  }

  async count(holder: string): Promise<RateLimitStatus> {
    for (;;) {
      const now = this.#clock.now()
      const known = this.#portions.get(holder)
      // A portion from before the clock was set back is replaced.
      const portion = known && known.ends - now <= MINUTE_MS ? known : undefined
      if (portion && portion.left > 0 && now < portion.ends) {
        portion.left--
        return { headers: this.#headers(portion, now), apiError: undefined }
      }
      if (portion && now < portion.empty_until) return this.#refuse(portion, now)
      await this.#leasePortion(holder, portion ? this.#inBucket(portion, now) : this.#bucket.calls_max)
    }
  }

  /** Leases a portion, once for concurrent calls of one holder. */
  #leasePortion(holder: string, in_bucket: number): Promise<void> {
    const running = this.#leasing.get(holder)
    if (running) return running
    const calls = Math.max(1, Math.floor(in_bucket * PORTION_SHARE))
    const taking = this.#takeNow(holder, calls).finally(() => this.#leasing.delete(holder))
    this.#leasing.set(holder, taking)
    return taking
  }

  async #takeNow(holder: string, calls: number): Promise<void> {
    const { granted, full_in_us } = await this.#store.writeAsyncCommit((tx) =>
      takeCalls(tx, holder, calls, this.#bucket),
    )
    const now = this.#clock.now()
    const fullAt = now + full_in_us / 1000
    const empty_until = granted > 0 ? 0 : Math.max(this.#nextCallAt(fullAt), now + RECHECK_MS)
    this.#portions.set(holder, { left: granted, ends: now + MINUTE_MS, fullAt, empty_until })
    this.#forgetEnded(now)
  }

  /** Removes expired portions from memory. */
  #forgetEnded(now: number): void {
    if (now < this.#forgetAt) return
    this.#forgetAt = now + MINUTE_MS
    for (const [holder, { ends }] of this.#portions) if (ends <= now) this.#portions.delete(holder)
  }

  #inBucket({ fullAt }: Portion, now: number): number {
    const { calls_max, interval_us } = this.#bucket
    return Math.max(0, calls_max - Math.ceil((Math.max(0, fullAt - now) * 1000) / interval_us))
  }

  /** The time when a bucket that is full at `fullAt` has its first call. */
  #nextCallAt(fullAt: number): number {
    const { calls_max, interval_us } = this.#bucket
    return fullAt - ((calls_max - 1) * interval_us) / 1000
  }

  #refuse(portion: Portion, now: number): RateLimitStatus {
    const wait_s = Math.max(1, Math.ceil((this.#nextCallAt(portion.fullAt) - now) / 1000))
    const message = `Too many requests: a ${this.#counted} may send ${this.#bucket.calls_max} a minute. Wait ${wait_s} s.`
    return {
      headers: this.#headers(portion, now),
      apiError: new ApiError('rate_limit_exceeded', message, {}, wait_s),
    }
  }

  #headers(portion: Portion, now: number): Record<string, string> {
    const { calls_max } = this.#bucket
    const remaining = Math.min(calls_max, portion.left + this.#inBucket(portion, now))
    return {
      'x-ratelimit-limit-requests': String(calls_max),
      'x-ratelimit-remaining-requests': String(remaining),
      'x-ratelimit-reset-requests': `${Math.max(0, Math.ceil((portion.fullAt - now) / 1000))}s`,
    }
  }
}

/** The status to report of two limits that count a call: an error, else the one with fewer calls left. */
export function tighter(
  a: RateLimitStatus | undefined,
  b: RateLimitStatus | undefined,
): RateLimitStatus | undefined {
  if (!a || !b) return a ?? b
  if (a.apiError || b.apiError) return a.apiError ? a : b
  return remaining(a) <= remaining(b) ? a : b
}

function remaining({ headers }: RateLimitStatus): number {
  return Number(headers['x-ratelimit-remaining-requests'])
}
