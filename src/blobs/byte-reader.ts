// Reads a stream of pieces of any size in blocks of a requested size. The next piece is requested while one is being
// used, so that the store and the cipher work concurrently.

export class ByteReader {
  readonly #source: AsyncIterator<Buffer>
  #next: Promise<IteratorResult<Buffer>> | null
  #held: Buffer[] = []
  #held_bytes = 0

  constructor(source: AsyncIterable<Buffer>) {
    this.#source = source[Symbol.asyncIterator]()
    this.#next = this.#ask()
  }

  /** The next `bytes` bytes; fewer only where the stream ends. Throws what the stream throws. */
  async take(bytes: number): Promise<Buffer> {
    while (this.#held_bytes < bytes && this.#next !== null) {
      const piece = await this.#next
      this.#next = piece.done ? null : this.#ask()
      if (piece.done) break
      this.#held.push(piece.value)
      this.#held_bytes += piece.value.length
    }
    return this.#cut(Math.min(bytes, this.#held_bytes))
  }

  /** Closes the stream, whether or not it was read to its end. */
  async close(): Promise<void> {
    this.#next = null
    await this.#source.return?.()
  }

  #ask(): Promise<IteratorResult<Buffer>> {
    const next = this.#source.next()
    // Its reader gets the failure; after close() there is none.
    next.catch(() => {})
    return next
  }

  #cut(bytes: number): Buffer {
    const first = this.#held[0]
    if (first === undefined) return Buffer.alloc(0)
    this.#held_bytes -= bytes
    if (first.length >= bytes) {
      this.#held[0] = first.subarray(bytes)
      if (first.length === bytes) this.#held.shift()
      return first.subarray(0, bytes)
    }
    const all = Buffer.concat(this.#held)
    this.#held = all.length > bytes ? [all.subarray(bytes)] : []
    return all.subarray(0, bytes)
  }
}
