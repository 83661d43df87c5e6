// Bytes of results in memory, by chunk: of open ones, and of those that are being sealed.
import type { ResponseMemory } from '../backends/response-memory.ts'
import type { OpenChunk } from './open-chunk.ts'

export class KeptBytes {
  readonly #answers: ResponseMemory
  readonly #chunks = new Map<OpenChunk, number>()
  #bytes = 0

  constructor(answers: ResponseMemory) {
    this.#answers = answers
  }

  /** Whether results that journals have are to leave memory. */
  get isTooMuch(): boolean {
    return this.#bytes > this.#answers.keptBytesMax
  }

  has(chunk: OpenChunk): boolean {
    return this.#chunks.has(chunk)
  }

  /** What the chunk has in memory now. */
  count(chunk: OpenChunk, bytes = chunk.keptBytes): void {
    this.#bytes += bytes - (this.#chunks.get(chunk) ?? 0)
    if (bytes === 0) this.#chunks.delete(chunk)
    else this.#chunks.set(chunk, bytes)
    this.#answers.result_bytes = this.#bytes
  }

  drop(chunk: OpenChunk): void {
    this.count(chunk, 0)
  }
}
