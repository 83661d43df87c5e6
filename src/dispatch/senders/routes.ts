// Decides to which upstreams lines of a model may go: to those of the lowest tier that is in use, and to those of
// higher tiers only by the rules of spill-over. A tier comes into use when every upstream below it that is inside its
// hours has been down for some time; while one of them answers, no line goes higher. Lines of at-risk batches may go to
// any tier, and take the lowest one that has room.
//
// A line's tier also decides between model servers and the executor of remote batches. If a tier has both, model
// servers get the lines that they can soon send, and batch APIs the rest.
import { ModelServer, type Upstream } from '../../servers/upstream.ts'

export interface Spill {
  /** The time in ms for which lower tiers must have been down; null: lines never spill over for that. */
  whenDownMs: number | null
  /** Whether lines of at-risk batches may spill over. */
  whenAtRisk: boolean
}

export const NO_SPILL: Spill = { whenDownMs: null, whenAtRisk: false }

/** The upstreams by tier, lowest first. */
type Tiers = readonly (readonly Upstream[])[]
type Servers = readonly (readonly ModelServer[])[]

export interface RoutedLine {
  isAtRisk: boolean
  /** The upstream of the last missed answer. */
  avoid: Upstream | null
  /** Whether a batch API would answer the line too late. */
  isLate: boolean
}

export class Route {
  readonly upstreams: readonly Upstream[]
  readonly servers: readonly ModelServer[]
  readonly #tiers: Tiers
  /** The upstreams of the lowest tiers, by their number: a claim asks for those of thousands of models. */
  readonly #upTo: readonly (readonly Upstream[])[]
  readonly #spill: Spill
  /** The servers of the lowest tiers, and the servers of the other tiers, by the number of lowest tiers. */
  readonly #lowest: readonly Servers[]
  readonly #higher: readonly Servers[]

  constructor(upstreams: readonly Upstream[], spill: Spill = NO_SPILL) {
    this.upstreams = upstreams
    this.servers = upstreams.filter((one) => one instanceof ModelServer)
    this.#spill = spill
    const byTier = [...Map.groupBy(upstreams, ({ tier }) => tier)].sort(([a], [b]) => a - b)
    const tiers = byTier.map(([, ofTier]) => ofTier)
    this.#tiers = tiers
    const counts = Array.from({ length: tiers.length + 1 }, (_, count) => count)
    this.#upTo = counts.map((count) => tiers.slice(0, count).flat())
    this.#lowest = counts.map((count) => serversOf(tiers.slice(0, count)))
    this.#higher = counts.map((count) => serversOf(tiers.slice(count)))
  }

  /** Whether the route has model servers, and other upstreams beside them. */
  get isMixed(): boolean {
    return this.servers.length > 0 && this.servers.length < this.upstreams.length
  }

  /** The servers of a server's tier, itself included. */
  peersOf({ tier }: ModelServer): readonly ModelServer[] {
    return this.#lowest.at(-1)?.find(([first]) => first?.tier === tier) ?? []
  }

  /** The upstreams to which any line, or any line of an at-risk batch, may be sent. */
  inUse(now: number, isAtRisk = false): readonly Upstream[] {
    return this.#upTo[this.#tiersOpen(isAtRisk, now)] ?? []
  }

  /** The servers for any line, lowest tier first. */
  serversInUse(now: number): Servers {
    return this.#lowest[this.#level(now) + 1] ?? []
  }

  /** The further servers for lines of at-risk batches, lowest tier first. */
  serversForAtRisk(now: number): Servers {
    if (this.#tiers.length <= 1 || !this.#spill.whenAtRisk) return []
    return this.#higher[this.#level(now) + 1] ?? []
  }

  /** The upstreams for lines that this one left, lowest tier first: of any tier if lines may spill over. */
  besides(upstream: Upstream): Tiers {
    const { whenDownMs, whenAtRisk } = this.#spill
    const isOpen = whenDownMs !== null || whenAtRisk
    const isOther = (one: Upstream): boolean => one !== upstream && (isOpen || one.tier <= upstream.tier)
    return this.#tiers.map((ofTier) => ofTier.filter(isOther)).filter((ofTier) => ofTier.length > 0)
  }

  /** The model servers among the upstreams of `besides`. */
  serversBesides(upstream: Upstream): Servers {
    return serversOf(this.besides(upstream))
  }

  /** Whether servers may answer at once the lines that a batch API may answer too late. */
  mayReplace(upstream: Upstream, now: number): boolean {
    const { whenAtRisk } = this.#spill
    return this.servers.some(
      (one) => one !== upstream && (whenAtRisk || one.tier <= upstream.tier) && !one.blocked(now),
    )
  }

  /** Whether a model server is to get the line. `areServersLow`: they can soon send more lines than they have. */
  prefersServers(
    { isAtRisk, avoid, isLate }: RoutedLine,
    areServersLow: () => boolean,
    now: number,
  ): boolean {
    if (!this.isMixed) return this.servers.length > 0
    if (isLate && this.upstreams.some((one) => this.mayReplace(one, now))) return true
    const tiers = this.#tiersFor(isAtRisk, avoid, now)
    for (const ofTier of tiers) {
      const usable = ofTier.filter((one) => !one.blocked(now))
      const isServer = usable.some((one) => one instanceof ModelServer)
      if (isServer && usable.every((one) => one instanceof ModelServer)) return true
      if (usable.length > 0) return isServer && areServersLow()
    }
    // Nothing takes lines just now: they wait where they would go first.
    return tiers[0]?.some((one) => one instanceof ModelServer) ?? true
  }

  #tiersFor(isAtRisk: boolean, avoid: Upstream | null, now: number): Tiers {
    if (avoid !== null && !(avoid instanceof ModelServer)) {
      const others = this.besides(avoid)
      if (others.length > 0) return others
    }
    return this.#tiers.slice(0, this.#tiersOpen(isAtRisk, now))
  }

  /** The number of tiers, from the lowest on, to which lines may be sent. */
  #tiersOpen(isAtRisk: boolean, now: number): number {
    return isAtRisk && this.#spill.whenAtRisk ? this.#tiers.length : this.#level(now) + 1
  }

  /** The time at which the next tier comes into use if nothing else changes (Unix ms); infinity if it does not. */
  nextAt(now: number): number {
    const level = this.#level(now)
    const since = level < this.#tiers.length - 1 ? this.#downSince(level, now) : null
    const { whenDownMs } = this.#spill
    return since === null || whenDownMs === null ? Number.POSITIVE_INFINITY : since + whenDownMs
  }

  #level(now: number): number {
    const { whenDownMs } = this.#spill
    let level = 0
    if (whenDownMs === null) return level
    while (level < this.#tiers.length - 1) {
      const since = this.#downSince(level, now)
      if (since === null || now - since < whenDownMs) break
      level++
    }
    return level
  }

  /** The time since which all upstreams up to this tier, inside their hours, have been down; null: one is up. */
  #downSince(level: number, now: number): number | null {
    let since: number | null = null
    for (let at = 0; at <= level; at++) {
      for (const upstream of this.#tiers[at]!) {
        if (upstream.placesAllowed(now) === 0) continue
        if (upstream.downSince === null) return null
        since = Math.max(since ?? 0, upstream.downSince)
      }
    }
    return since
  }
}

/** The model servers of tiers that have any. */
function serversOf(tiers: Tiers): Servers {
  return tiers
    .map((ofTier) => ofTier.filter((one) => one instanceof ModelServer))
    .filter((servers) => servers.length > 0)
}

/** The server with the largest free share, of the lowest tier that has a slot; `avoid` only alone. Null: none has a slot. */
export function chooseServer(tiers: Servers, avoid: Upstream | null, now: number): ModelServer | null {
  for (let at = 0; at < tiers.length; at++) {
    let best: ModelServer | null = null
    let bestShare = -1
    for (const server of tiers[at]!) {
      if (!server.accepts(now)) continue
      const share = server === avoid ? 0 : server.freePlaces(now) / server.limit.limit
      if (share <= bestShare) continue
      best = server
      bestShare = share
    }
    if (best) return best
  }
  return null
}

/** Chooses among tiers that few lines go to, which also probe servers whose circuit would otherwise stay open. */
export function chooseOrProbe(tiers: Servers, now: number): ModelServer | null {
  for (const servers of tiers)
    for (const one of servers) if (one.circuit.probeDue(now) && one.freePlaces(now) > 0) return one
  return chooseServer(tiers, null, now)
}
