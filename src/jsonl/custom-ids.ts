// A 64-bit hash of a custom_id's bytes: two 32-bit lanes in the manner of MurmurHash3 with different mixing and
// random seeds, so that a caller cannot construct IDs that collide.
import { freeBuffer } from '../domain/free-buffer.ts'
import type { InputLine } from './line-scan.ts'

/** A hash of IDs. `read` leaves its result in `lo` and `hi`, unsigned 32-bit each: no object per line. */
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

  get seed(): Uint32Array<ArrayBuffer> {
    return new Uint32Array([this.#seed_lo, this.#seed_hi])
  }

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

// The custom_ids that a file has used so far, in twelve bytes each: a map of 64-bit hashes to line numbers with open
// addressing in typed arrays. Two IDs may have the same hash, so a hit has to be verified.
//
// The upper bits of the hash select a shard. Each shard grows separately, so growing needs twice the memory of one
// shard, not of the whole set.

const SHARD_BITS = 6
const SHARDS = 2 ** SHARD_BITS
const SLOTS_MIN = 128
/** Numbers in a slot, and in an entry: the low and the high half of a hash, and the line. */
const SLOT = 3
/** The load factor above which a shard grows, since probes become long. */
const LOAD_MAX = 0.7

/** The entries of a shard, in any order. */
export type Entries = Uint32Array<ArrayBuffer>

/** Hashes are two unsigned 32-bit numbers. (0, 0) and (1, 0) count as the same hash. */
export class HashSet64 {
  #shards = Array.from({ length: SHARDS }, () => new Shard())
  #size = 0

  get size(): number {
    return this.#size
  }

  has(lo: number, hi: number): boolean {
    return this.#shards[hi >>> (32 - SHARD_BITS)]!.has(storedLow(lo, hi), hi)
  }

  /** Adds a hash; false when the set contained it already. */
  add(lo: number, hi: number, line = 0): boolean {
    const isNew = this.#shards[hi >>> (32 - SHARD_BITS)]!.add(storedLow(lo, hi), hi, line)
    if (isNew) this.#size++
    return isNew
  }

  /** Empties the set and keeps its memory for reuse; returns its entries, by shard. */
  drain(): Entries[] {
    this.#size = 0
    return this.#shards.map((shard) => shard.drain())
  }
}

/** The low half as stored: zero marks a free slot, so the zero hash is stored as (1, 0). */
function storedLow(lo: number, hi: number): number {
  return lo === 0 && hi === 0 ? 1 : lo
}

class Shard {
  /** The low and the high half of each slot's hash, both zero in a free slot, and its line. */
  #slots: Entries = new Uint32Array(SLOT * SLOTS_MIN)
  #size = 0

  has(lo: number, hi: number): boolean {
    const at = this.#find(lo, hi)
    return this.#slots[at] !== 0 || this.#slots[at + 1] !== 0
  }

  add(lo: number, hi: number, line: number): boolean {
    const at = this.#find(lo, hi)
    if (this.#slots[at] !== 0 || this.#slots[at + 1] !== 0) return false
    this.#slots[at] = lo
    this.#slots[at + 1] = hi
    this.#slots[at + 2] = line
    this.#size++
    if (SLOT * this.#size > LOAD_MAX * this.#slots.length) this.#grow()
    return true
  }

  drain(): Entries {
    const entries = new Uint32Array(SLOT * this.#size)
    let to = 0
    for (let at = 0; at < this.#slots.length; at += SLOT) {
      if (this.#slots[at] === 0 && this.#slots[at + 1] === 0) continue
      for (let i = 0; i < SLOT; i++) entries[to++] = this.#slots[at + i]!
    }
    this.#slots.fill(0)
    this.#size = 0
    return entries
  }

  /** The slot with the hash, or else the free slot for it. */
  #find(lo: number, hi: number): number {
    const slots = this.#slots
    const mask = slots.length / SLOT - 1
    let at = (lo & mask) * SLOT
    while ((slots[at] !== lo || slots[at + 1] !== hi) && (slots[at] !== 0 || slots[at + 1] !== 0)) {
      at += SLOT
      if (at === slots.length) at = 0
    }
    return at
  }

  #grow(): void {
    const old = this.#slots
    this.#slots = new Uint32Array(2 * old.length)
    for (let at = 0; at < old.length; at += SLOT) {
      const lo = old[at]!
      const hi = old[at + 1]!
      if (lo === 0 && hi === 0) continue
      const free = this.#find(lo, hi)
      this.#slots[free] = lo
      this.#slots[free + 1] = hi
      this.#slots[free + 2] = old[at + 2]!
    }
    freeBuffer(old)
  }
}

/** Called with a line whose custom_id hash an earlier line has. */
export type OnCollision = (lo: number, hi: number, line: number) => void

/** Joins the entries of consecutive parts of a file in an empty shard; of equal hashes the first stays. */
function joinEntries(parts: readonly Entries[], shard: Shard, onCollision: OnCollision): Entries {
  for (const part of parts) {
    for (let at = 0; at < part.length; at += SLOT) {
      const lo = part[at]!
      const hi = part[at + 1]!
      const line = part[at + 2]!
      if (!shard.add(lo, hi, line)) onCollision(lo, hi, line)
    }
    freeBuffer(part)
  }
  return shard.drain()
}

// The index of the custom_ids of a file: the seed of the hash (8 bytes), and an entry of 8 bytes for each line, sorted:
// the upper half of its hash, little-endian, after its number. Hashes are spread evenly, so the place of an entry is
// known to within a few standard deviations: a reader needs a small range of an index of any size.

const SEED_BYTES = 8
const ENTRY_BYTES = 8

/**
 * The pieces of the index, one for each shard. `partsOf` returns the shard's entries of each part, earlier lines first.
 * A piece and its entries are freed when the next one is asked for. After a collision, and without a seed, there are no
 * pieces, but each collision is reported; an index with a seed then throws EqualHashes.
 */
export async function* customIdIndex(
  seed: Uint32Array<ArrayBuffer> | null,
  partsOf: (shard: number) => Promise<readonly Entries[]>,
  onCollision: OnCollision,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
  let isUnique = seed !== null
  if (seed) yield new Uint8Array(seed.buffer)
  const spare = new Shard()
  for (let shard = 0; shard < SHARDS; shard++) {
    const parts = await partsOf(shard)
    const [first] = parts
    const entries =
      first && parts.length === 1
        ? first
        : joinEntries(parts, spare, (...collision) => {
            isUnique = false
            onCollision(...collision)
          })
    if (isUnique) {
      const piece = indexPiece(entries)
      yield piece
      freeBuffer(piece)
    }
    freeBuffer(entries)
  }
  if (seed && !isUnique) throw new EqualHashes()
}

export class EqualHashes extends Error {}

function indexPiece(entries: Entries): Uint8Array<ArrayBuffer> {
  const piece = new Uint32Array((2 * entries.length) / SLOT)
  for (let at = 0, to = 0; at < entries.length; at += SLOT) {
    piece[to++] = entries[at + 2]!
    piece[to++] = entries[at + 1]!
  }
  new BigUint64Array(piece.buffer).sort()
  return new Uint8Array(piece.buffer)
}

/** The numbers of the lines that may have a custom_id, ascending, mostly one or none; `bytes` is the index's size. */
export async function linesInIndex(
  bytes: number,
  custom_id: string,
  read: (range: { start: number; end: number }) => Promise<Buffer>,
): Promise<number[]> {
  const count = (bytes - SEED_BYTES) / ENTRY_BYTES
  const seed = await read({ start: 0, end: SEED_BYTES })
  const hash = new SeededHash(new Uint32Array([seed.readUInt32LE(0), seed.readUInt32LE(4)]))
  const id = Buffer.from(custom_id)
  hash.read(id, 0, id.length)
  const place = Math.floor((hash.hi / 2 ** 32) * count)
  for (let reach = 64 + Math.ceil(4 * Math.sqrt(count)); ; reach *= 8) {
    const [from, to] = [Math.max(0, place - reach), Math.min(count, place + reach)]
    const entries = await read({ start: SEED_BYTES + from * ENTRY_BYTES, end: SEED_BYTES + to * ENTRY_BYTES })
    const hashAt = (i: number): number => entries.readUInt32LE(i * ENTRY_BYTES + 4)
    if (from > 0 && hashAt(0) >= hash.hi) continue
    if (to < count && hashAt(to - from - 1) <= hash.hi) continue
    const lines: number[] = []
    for (let i = 0; i < to - from; i++)
      if (hashAt(i) === hash.hi) lines.push(entries.readUInt32LE(i * ENTRY_BYTES))
    return lines
  }
}
