// Which custom_ids a file has used so far, in eight bytes each: a set of 64-bit hashes, open addressing in
// one typed array. Two ids may share a hash, so a hit is a suspicion to be verified, never a verdict.

const SLOTS_MIN = 1024
/** Full beyond this share, probes become long. */
const LOAD_MAX = 0.7

export class HashSet64 {
  /** Per slot the low and the high half; both zero where it is free. */
  #slots = new Uint32Array(2 * SLOTS_MIN)
  #size = 0

  get size(): number {
    return this.#size
  }

  has(lo: number, hi: number): boolean {
    const at = this.#find(lo === 0 && hi === 0 ? 1 : lo, hi)
    return this.#slots[at] !== 0 || this.#slots[at + 1] !== 0
  }

  /** False when the hash was there already. */
  add(lo: number, hi: number): boolean {
    // Zero means free, so the zero hash borrows its neighbour.
    const low = lo === 0 && hi === 0 ? 1 : lo
    const at = this.#find(low, hi)
    if (this.#slots[at] !== 0 || this.#slots[at + 1] !== 0) return false
    this.#slots[at] = low
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
