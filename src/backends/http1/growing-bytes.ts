// Bytes that come in pieces, gathered in one buffer: a piece costs what it holds, however small it is.

const CAPACITY_MIN = 1024
/** Up to this size, room for all that may come is made at once; more has to come first. */
const CAPACITY_AT_ONCE_MAX = 256 * 1024
const NOTHING = Buffer.alloc(0)

export class GrowingBytes {
  #buffer: Buffer = NOTHING
  #length = 0

  get length(): number {
    return this.#length
  }

  /** What it takes in memory. */
  get capacity(): number {
    return this.#buffer.length
  }

  /** What was gathered, until more is added. */
  get view(): Buffer {
    return this.#buffer.subarray(0, this.#length)
  }

  /** Adds `bytes[at, end)`; `length_max`: more than this in all will never come. */
  add(bytes: Buffer, at: number, end: number, length_max: number): void {
    const needed = this.#length + end - at
    if (needed > this.#buffer.length) {
      const capacity = Math.max(needed, Math.min(length_max, this.#roomFor(length_max)))
      const grown = Buffer.allocUnsafeSlow(capacity)
      this.#buffer.copy(grown, 0, 0, this.#length)
      this.#buffer = grown
    }
    bytes.copy(this.#buffer, this.#length, at, end)
    this.#length = needed
  }

  #roomFor(length_max: number): number {
    if (length_max <= CAPACITY_AT_ONCE_MAX) return length_max
    return Math.max(CAPACITY_MIN, 2 * this.#buffer.length)
  }

  /** Hands everything over, without much room behind it, and begins anew. */
  take(): Buffer {
    const { view } = this
    const isTight = this.#buffer.length - this.#length <= this.#length >> 3
    this.clear()
    return isTight ? view : Buffer.from(view)
  }

  clear(): void {
    this.#buffer = NOTHING
    this.#length = 0
  }
}
