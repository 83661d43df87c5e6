// Random numbers seeded by the bytes of the request, so the same request gets the same response on every machine.
import { hash } from 'node:crypto'

export interface SeededRandom {
  /** The SHA-256 of the request, the seed of its random numbers, in hex. */
  readonly sha256: string
  /** Draws the next number, uniform over 0..2^32-1. */
  next(): number
  /** Draws the next fraction in [0, 1). */
  fraction(): number
  /** Draws the next whole number in [min, max]. */
  between(min: number, max: number): number
}

/** The random numbers for the body of a request. */
export function randomOf(body: Uint8Array): SeededRandom {
  return randomOfHash(hash('sha256', body, 'hex'))
}

/** The random numbers for a SHA-256: the fastest hash at hand where the processor has instructions for it. */
export function randomOfHash(sha256: string, salt = 0): SeededRandom {
  // mulberry32, started from the first 32 bits of the hash.
  let state = (Number.parseInt(sha256.slice(0, 8), 16) ^ Math.imul(salt, 0x9e3779b1)) | 0
  const next = (): number => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return (mixed ^ (mixed >>> 14)) >>> 0
  }
  const fraction = (): number => next() / 2 ** 32
  return {
    sha256,
    next,
    fraction,
    between: (min, max) => min + Math.floor(fraction() * (max - min + 1)),
  }
}
