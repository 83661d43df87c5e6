// Counts the bytes of results in memory, for open chunks and for chunks that are being sealed.
import type { ResponseMemory } from '../backends/response-memory.ts'
import type { OpenChunk } from './open-chunk.ts'

export class KeptBytes {
  readonly #answers: ResponseMemory
  readonly #chunks = new Map<OpenChunk, number>()
  #bytes = 0

  constructor(answers: ResponseMemory) {
    this.#answers = answers
  }

  /** Whether journalled results should be dropped from memory. */
  get isTooMuch(): boolean {
    return this.#bytes > this.#answers.keptBytesMax
  }

  has(chunk: OpenChunk): boolean {
    return this.#chunks.has(chunk)
  }

  /** Updates the count of a chunk. */
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
