// A 64-bit hash of a custom_id's bytes: two 32-bit lanes in the manner of MurmurHash3 with different mixing and
// random seeds, so that a caller cannot construct IDs that collide.
import type { InputLine } from '../jsonl/line-scan.ts'

/** `read` leaves its result in `lo` and `hi`, unsigned 32-bit each: no object per line. */
export interface IdHash {
  read(bytes: Uint8Array, start: number, end: number): void
  readonly lo: number
  readonly hi: number
}

export class SeededHash implements IdHash {
  lo = 0
  hi = 0
  #seed_lo: number
  #seed_hi: number

  constructor(seed = crypto.getRandomValues(new Uint32Array(2))) {
    this.#seed_lo = seed[0] ?? 0
    this.#seed_hi = seed[1] ?? 0
  }

  read(bytes: Uint8Array, start: number, end: number): void {
    let a = this.#seed_lo
    let b = this.#seed_hi
    let i = start
    for (; i + 4 <= end; i += 4) {
      const word = bytes[i]! | (bytes[i + 1]! << 8) | (bytes[i + 2]! << 16) | (bytes[i + 3]! << 24)
      a = stepA(a, word)
      b = stepB(b, word)
    }
    let rest = 0
    for (let shift = 0; i < end; i++, shift += 8) rest |= bytes[i]! << shift
    a = stepA(a, rest) ^ (end - start)
    b = stepB(b, rest) ^ (end - start)
    a = finish(a ^ Math.imul(b, 0x9e3779b1))
    b = finish(b ^ Math.imul(a, 0x85ebca77))
    this.lo = a >>> 0
    this.hi = b >>> 0
  }
}

function stepA(state: number, word: number): number {
  const k = Math.imul(word, 0xcc9e2d51)
  const x = state ^ Math.imul((k << 15) | (k >>> 17), 0x1b873593)
  return (Math.imul((x << 13) | (x >>> 19), 5) + 0xe6546b64) | 0
}

function stepB(state: number, word: number): number {
  const k = Math.imul(word ^ 0x5bd1e995, 0x239b961b)
  const x = state ^ Math.imul((k << 17) | (k >>> 15), 0x38b34ae5)
  return (Math.imul((x << 19) | (x >>> 13), 5) + 0x561ccd1b) | 0
}

function finish(state: number): number {
  let x = state
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b)
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35)
  return x ^ (x >>> 16)
}

/** Hashes the decoded `custom_id` of a line, however it is written. */
export function hashCustomId(line: InputLine, hash: IdHash): void {
  if (line.custom_id_escaped) {
    const id = Buffer.from(line.custom_id)
    hash.read(id, 0, id.length)
  } else hash.read(line.bytes, line.custom_id_span.start, line.custom_id_span.end)
}
