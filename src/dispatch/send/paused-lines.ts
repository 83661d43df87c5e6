// Unsent lines that are paused: they are in no queue until the pause ends.
import type { OpenChunk } from '../../results/open-chunk.ts'

export class PausedLines {
  /** Whether lines of the chunk that name this model are paused. */
  readonly #isPaused: (chunk: OpenChunk, model: string) => boolean
  readonly #positions = new WeakMap<OpenChunk, Set<number>>()

  constructor(isPaused: (chunk: OpenChunk, model: string) => boolean) {
    this.#isPaused = isPaused
  }

  /** Whether the line is paused; then it is kept here until `take`. */
  withholds(chunk: OpenChunk, position: number): boolean {
    const { model } = chunk.lines[position]!
    if (model === null || !this.#isPaused(chunk, model)) return false
    const positions = this.#positions.get(chunk) ?? new Set()
    this.#positions.set(chunk, positions.add(position))
    return true
  }

  take(chunk: OpenChunk): number[] {
    const positions = [...(this.#positions.get(chunk) ?? [])]
    this.#positions.delete(chunk)
    return positions
  }

  count(chunk: OpenChunk): number {
    return this.#positions.get(chunk)?.size ?? 0
  }
}
