// The custom_ids that a file has used so far, in eight bytes each: a set of 64-bit hashes with open addressing in
// typed arrays. Two IDs may have the same hash, so a hit has to be verified.
//
// The upper bits of the hash select a shard. Each shard grows separately, so growing needs twice the memory of one
// shard, not of the whole set.

const SHARD_BITS = 6
const SLOTS_MIN = 128
/** Above this load factor probes become long. */
const LOAD_MAX = 0.7

/** Hashes are two unsigned 32-bit numbers. (0, 0) and (1, 0) count as the same hash. */
export class HashSet64 {
  #shards = Array.from({ length: 2 ** SHARD_BITS }, () => new Shard())

  has(lo: number, hi: number): boolean {
    return this.#shards[hi >>> (32 - SHARD_BITS)]!.has(taken(lo, hi), hi)
  }

  /** The memory of all slots. */
  get bytes(): number {
    let bytes = 0
    for (const shard of this.#shards) bytes += shard.bytes
    return bytes
  }

  /** False when the set contained the hash already. */
  add(lo: number, hi: number): boolean {
    return this.#shards[hi >>> (32 - SHARD_BITS)]!.add(taken(lo, hi), hi)
  }
}

/** Zero means a free slot, so the zero hash is stored as (1, 0). */
function taken(lo: number, hi: number): number {
  return lo === 0 && hi === 0 ? 1 : lo
}

class Shard {
  /** Per slot the low and the high half; both zero where it is free. */
  #slots = new Uint32Array(2 * SLOTS_MIN)
  #size = 0

  get bytes(): number {
    return this.#slots.byteLength
  }

  has(lo: number, hi: number): boolean {
    const at = this.#find(lo, hi)
    return this.#slots[at] !== 0 || this.#slots[at + 1] !== 0
  }

  add(lo: number, hi: number): boolean {
    const at = this.#find(lo, hi)
    if (this.#slots[at] !== 0 || this.#slots[at + 1] !== 0) return false
    this.#slots[at] = lo
    this.#slots[at + 1] = hi
    this.#size++
    if (2 * this.#size > LOAD_MAX * this.#slots.length) this.#grow()
    return true
  }

  /** The slot that holds the hash, or the free one where it belongs. */
  #find(lo: number, hi: number): number {
    const slots = this.#slots
    const mask = slots.length - 1
    let at = (lo << 1) & mask
    while ((slots[at] !== lo || slots[at + 1] !== hi) && (slots[at] !== 0 || slots[at + 1] !== 0)) {
      at = (at + 2) & mask
    }
    return at
  }

  #grow(): void {
    const old = this.#slots
    this.#slots = new Uint32Array(2 * old.length)
    for (let at = 0; at < old.length; at += 2) {
      const lo = old[at]!
      const hi = old[at + 1]!
      if (lo === 0 && hi === 0) continue
      const free = this.#find(lo, hi)
      this.#slots[free] = lo
      this.#slots[free + 1] = hi
    }
  }
}
