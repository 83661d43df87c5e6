// Which upstreams of a model a line may be sent to: those of the lowest tier that is in use, and those of higher tiers
// only by the rules of spill-over. A tier comes into use when every upstream below it that is inside its hours has been
// down for some time; while one of them answers, nothing goes higher. Lines of at-risk batches may go to any tier, and
// still take the lowest one that has room.
import type { Upstream } from './upstream.ts'

export interface Spill {
  /** How long the lower tiers must have been down; null: however long they are, nothing spills over for that. */
  whenDownMs: number | null
  /** Whether lines of at-risk batches may spill over. */
  whenAtRisk: boolean
}

export const NO_SPILL: Spill = { whenDownMs: null, whenAtRisk: false }

type TieredUpstream = Pick<Upstream, 'tier' | 'downSince' | 'placesAllowed'>

export class Tiers<U extends TieredUpstream> {
  readonly #tiers: readonly (readonly U[])[]
  readonly #spill: Spill

  constructor(upstreams: readonly U[], spill: Spill) {
    const byTier = Map.groupBy(upstreams, ({ tier }) => tier)
    this.#tiers = [...byTier].sort(([a], [b]) => a - b).map(([, ofTier]) => ofTier)
    this.#spill = spill
  }

  /** The upstreams of its tier, itself included. */
  of({ tier }: U): readonly U[] {
    return this.#tiers.find(([first]) => first?.tier === tier) ?? []
  }

  /** What any line may be sent to, lowest tier first. */
  inUse(now: number): readonly (readonly U[])[] {
    return this.#tiers.length <= 1 ? this.#tiers : this.#tiers.slice(0, this.#level(now) + 1)
  }

  /** What lines of at-risk batches may be sent to beside it, lowest tier first. */
  forAtRisk(now: number): readonly (readonly U[])[] {
    return this.#tiers.length <= 1 || !this.#spill.whenAtRisk ? [] : this.#tiers.slice(this.#level(now) + 1)
  }

  /** What lines may be sent to that this upstream left unfinished, lowest tier first: any tier, if any may be spilled to. */
  besides(upstream: U): readonly (readonly U[])[] {
    const { whenDownMs, whenAtRisk } = this.#spill
    const isOpen = whenDownMs !== null || whenAtRisk
    return this.#tiers
      .map((ofTier) => ofTier.filter((one) => one !== upstream && (isOpen || one.tier <= upstream.tier)))
      .filter((ofTier) => ofTier.length > 0)
  }

  /** What lines may be sent to that this upstream may answer too late. */
  insteadOf(upstream: U): readonly U[] {
    const { whenAtRisk } = this.#spill
    return this.#tiers.flat().filter((one) => one !== upstream && (whenAtRisk || one.tier <= upstream.tier))
  }

  /** When the next tier comes into use by the passing of time alone (Unix ms); infinity if it does not. */
  nextAt(now: number): number {
    const level = this.#level(now)
    const since = level < this.#tiers.length - 1 ? this.#downSince(level, now) : null
    const { whenDownMs } = this.#spill
    return since === null || whenDownMs === null ? Number.POSITIVE_INFINITY : since + whenDownMs
  }

  #level(now: number): number {
    const { whenDownMs } = this.#spill
    if (whenDownMs === null) return 0
    let level = 0
    while (level < this.#tiers.length - 1) {
      const since = this.#downSince(level, now)
      if (since === null || now - since < whenDownMs) break
      level++
    }
    return level
  }

  /** Since when all upstreams up to this tier that are inside their hours have been down; null unless they are. */
  #downSince(level: number, now: number): number | null {
    let since: number | null = null
    for (const ofTier of this.#tiers.slice(0, level + 1)) {
      for (const upstream of ofTier) {
        if (upstream.placesAllowed(now) === 0) continue
        if (upstream.downSince === null) return null
        since = Math.max(since ?? 0, upstream.downSince)
      }
    }
    return since
  }
}
