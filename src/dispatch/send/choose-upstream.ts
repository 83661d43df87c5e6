// Where a line goes: of the upstreams that it may be sent to (tiers.ts), the lowest tier that has one with a place;
// there, the batch API that has the fewest lines, or the model server with the largest free share; and the upstream where
// the line failed last only if there is no other.
import type { Upstream } from './upstream.ts'

type Choice = Pick<Upstream, 'accepts' | 'freePlaces' | 'linesThere'> & {
  limit: Pick<Upstream['limit'], 'limit'>
}

/** Null where none has a place. */
export function chooseUpstream<U extends Choice>(
  tiers: readonly (readonly U[])[],
  avoid: U | null,
  now: number,
): U | null {
  for (const ofTier of tiers) {
    let best: U | null = null
    let bestShare = -1
    let fewest = Number.POSITIVE_INFINITY
    for (const upstream of ofTier) {
      if (!upstream.accepts(now)) continue
      const share = upstream === avoid ? 0 : upstream.freePlaces(now) / upstream.limit.limit
      const lines = upstream === avoid ? Number.POSITIVE_INFINITY : upstream.linesThere
      if (lines > fewest || (lines === fewest && share <= bestShare)) continue
      best = upstream
      fewest = lines
      bestShare = share
    }
    if (best) return best
  }
  return null
}
