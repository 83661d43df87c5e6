// Decides which attempts meet which fault, from the request's bytes, the seed, and how many faults this request has met
// in a row: a retry of the same bytes rolls anew, so it can succeed, and a run repeated with the same seed meets the
// same faults whatever the order of its requests.
import type { SimulatedFault } from '../../domain/simulated-fault.ts'
import { randomOfHash } from './seeded-random.ts'
import type { SimSettings } from './sim-options.ts'

/** Requests remembered between a fault and its retry; beyond it the longest forgotten starts over. */
const REMEMBERED_MAX = 1_000_000

export class FaultPlan {
  readonly #faults: SimSettings['faults']
  readonly #seed: number
  /** Faults in a row by request; only of requests whose last attempt met one. */
  readonly #met = new Map<string, number>()

  constructor({ faults, seed }: Pick<SimSettings, 'faults' | 'seed'>) {
    this.#faults = faults
    this.#seed = seed
  }

  /** The fault that this attempt at the request `sha256` meets, or null. */
  next(sha256: string): SimulatedFault | null {
    if (this.#faults.length === 0) return null
    const met = this.#met.get(sha256) ?? 0
    const fault = this.#roll(sha256, met)
    this.#met.delete(sha256)
    if (fault !== null) {
      this.#met.set(sha256, met + 1)
      const [oldest] = this.#met.size > REMEMBERED_MAX ? this.#met.keys() : []
      if (oldest !== undefined) this.#met.delete(oldest)
    }
    return fault
  }

  #roll(sha256: string, met: number): SimulatedFault | null {
    // Bits of the hash that the answer's own dice do not start from.
    let at = randomOfHash(sha256.slice(8, 16), this.#seed * 1_000_003 + met + 1).fraction()
    for (const { fault, rate } of this.#faults) {
      if (at < rate) return fault
      at -= rate
    }
    return null
  }
}
