// So many calls a minute for each key, whatever they ask for.
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible'
import { Refusal } from '../domain/errors.ts'

const WINDOW_S = 60

export interface RateStanding {
  headers: Record<string, string>
  /** Undefined while calls are left. */
  refusal: Refusal | undefined
}

export class RateLimit {
  readonly #limiter: RateLimiterMemory

  constructor(requests_per_minute: number) {
    this.#limiter = new RateLimiterMemory({ points: requests_per_minute, duration: WINDOW_S })
  }

  /** Counts one call of this key. */
  async count(key_id: string): Promise<RateStanding> {
    try {
      return { headers: this.#headers(await this.#limiter.consume(key_id)), refusal: undefined }
    } catch (spent) {
      if (!(spent instanceof RateLimiterRes)) throw spent
      const wait_s = Math.max(1, Math.ceil(spent.msBeforeNext / 1000))
      const message = `Too many requests: a key may send ${this.#limiter.points} a minute. Wait ${wait_s} s.`
      return {
        headers: this.#headers(spent),
        refusal: new Refusal('rate_limit_exceeded', message, {}, wait_s),
      }
    }
  }

  #headers(standing: RateLimiterRes): Record<string, string> {
    return {
      'x-ratelimit-limit-requests': String(this.#limiter.points),
      'x-ratelimit-remaining-requests': String(standing.remainingPoints),
      'x-ratelimit-reset-requests': `${Math.ceil(standing.msBeforeNext / 1000)}s`,
    }
  }
}
