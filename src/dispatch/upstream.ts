// One model server as the dispatcher sees it: where to send, how much at once, and whether it is up.
import type { Backend } from '../backends/backend.ts'
import { Circuit } from './circuit.ts'
import { ConcurrencyLimit } from './concurrency.ts'

export interface UpstreamOptions {
  backend: Backend
  concurrency_max: number
  /** What this server calls the model; null when it is the model's own ID. */
  model_alias: string | null
}

export class Upstream {
  readonly backend: Backend
  readonly limit: ConcurrencyLimit
  readonly circuit = new Circuit()
  /** The JSON string that replaces `model` in the body; null to send the body untouched. */
  readonly model_json: Buffer | null
  /** Asked to leave it alone until then (Unix ms). */
  #pausedUntil = 0

  constructor(options: UpstreamOptions) {
    this.backend = options.backend
    this.limit = new ConcurrencyLimit({ max: options.concurrency_max })
    this.model_json = options.model_alias === null ? null : Buffer.from(JSON.stringify(options.model_alias))
  }

  get name(): string {
    return this.backend.name
  }

  accepts(now: number): boolean {
    return this.limit.free > 0 && now >= this.#pausedUntil && this.circuit.allows(now)
  }

  /** Whether nothing can be sent for reasons that time heals: down, or told to wait. */
  blocked(now: number): boolean {
    return now < this.#pausedUntil || (this.circuit.open && !this.circuit.allows(now))
  }

  /** When `accepts` may turn true by the passing of time alone; null when only an answer can bring it. */
  opensAt(now: number): number | null {
    if (now < this.#pausedUntil) return this.#pausedUntil
    const at = this.circuit.retryAt
    return at !== null && at > now ? at : null
  }

  pauseUntil(until: number): void {
    this.#pausedUntil = Math.max(this.#pausedUntil, until)
  }
}
