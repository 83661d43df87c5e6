// So many calls a minute for each key, whatever they ask for and whichever API process they reach. Calls are
// taken from the database by the handful and counted down here: what all processes let through together never
// passes the limit, and few calls cost a write. What a process took and nobody asked for goes unused; the nearer
// the limit, the smaller the handful.
import type { Clock } from '../domain/clock.ts'
import { Refusal } from '../domain/errors.ts'
import { takeCalls } from '../store/rate-windows.ts'
import type { Store } from '../store/store.ts'

const WINDOW_MS = 60_000
/** The part of the calls that seem left which is taken at once. */
const HANDFUL_SHARE = 0.05

export interface RateStanding {
  headers: Record<string, string>
  /** Undefined while calls are left. */
  refusal: Refusal | undefined
}

/** What this process has taken for a key in the current window. */
interface Handful {
  /** To be given out. */
  left: number
  /** Left to be taken by anyone, when this handful was. */
  left_for_all: number
  /** On this process's clock, Unix ms. */
  ends: number
}

export class RateLimit {
  readonly #store: Pick<Store, 'note' | 'claimSql'>
  readonly #clock: Clock
  readonly #limit: number
  readonly #handfuls = new Map<string, Handful>()
  readonly #taking = new Map<string, Promise<Handful>>()
  #forgetAt = 0

  constructor(store: Pick<Store, 'note' | 'claimSql'>, clock: Clock, requests_per_minute: number) {
    this.#store = store
    this.#clock = clock
    this.#limit = requests_per_minute
  }

  /** Counts one call of this key. */
  async count(key_id: string): Promise<RateStanding> {
    for (;;) {
      const now = this.#clock.now()
      const known = this.#handfuls.get(key_id)
      const current = known && known.ends > now ? known : null
      if (current && current.left > 0) {
        current.left--
        return { headers: this.#headers(current, now), refusal: undefined }
      }
      if (current && current.left_for_all === 0) return this.#refuse(current, now)
      await this.#take(key_id, current?.left_for_all ?? this.#limit)
    }
  }

  /** Calls that come while a handful is being taken wait for the same one. */
  #take(key_id: string, left_for_all: number): Promise<Handful> {
    const running = this.#taking.get(key_id)
    if (running) return running
    const calls = Math.max(1, Math.floor(left_for_all * HANDFUL_SHARE))
    const taking = this.#takeNow(key_id, calls).finally(() => this.#taking.delete(key_id))
    this.#taking.set(key_id, taking)
    return taking
  }

  async #takeNow(key_id: string, calls: number): Promise<Handful> {
    const { taken, left_ms } = await this.#store.note((tx) =>
      takeCalls(tx, this.#store.claimSql, key_id, calls, WINDOW_MS),
    )
    const now = this.#clock.now()
    const handful = {
      left: Math.min(calls, Math.max(0, this.#limit - (taken - calls))),
      left_for_all: Math.max(0, this.#limit - taken),
      ends: now + left_ms,
    }
    this.#handfuls.set(key_id, handful)
    this.#forgetEnded(now)
    return handful
  }

  /** Keys that have fallen silent are not kept for ever. */
  #forgetEnded(now: number): void {
    if (now < this.#forgetAt) return
    this.#forgetAt = now + WINDOW_MS
    for (const [key_id, { ends }] of this.#handfuls) if (ends <= now) this.#handfuls.delete(key_id)
  }

  #refuse(handful: Handful, now: number): RateStanding {
    const wait_s = Math.max(1, Math.ceil((handful.ends - now) / 1000))
    const message = `Too many requests: a key may send ${this.#limit} a minute. Wait ${wait_s} s.`
    return {
      headers: this.#headers(handful, now),
      refusal: new Refusal('rate_limit_exceeded', message, {}, wait_s),
    }
  }

  #headers({ left, left_for_all, ends }: Handful, now: number): Record<string, string> {
    return {
      'x-ratelimit-limit-requests': String(this.#limit),
      'x-ratelimit-remaining-requests': String(left + left_for_all),
      'x-ratelimit-reset-requests': `${Math.ceil((ends - now) / 1000)}s`,
    }
  }
}
