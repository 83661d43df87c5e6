// The only source of randomness in a simulation: the same seed gives the same numbers, so a failing run can be
// replayed.

export interface SeededRandom {
  /** In [0, 1). */
  next(): number
  /** A whole number from `min` to `max`, both included. */
  int(min: number, max: number): number
  /** True in a share `p` of the calls. */
  chance(p: number): boolean
  pick<T>(from: readonly T[]): T
}

/** Mulberry32: small, fast, and random enough to choose faults. */
export function seededRandom(seed: number): SeededRandom {
  let state = (seed * 0x9e3779b1) >>> 0
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0
    let t = state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
  const int = (min: number, max: number): number => min + Math.floor(next() * (max - min + 1))
  return {
    next,
    int,
    chance: (p) => next() < p,
    pick: (from) => from[int(0, from.length - 1)]!,
  }
}
