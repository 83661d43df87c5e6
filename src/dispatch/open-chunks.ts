// The chunks that a worker has open, each with the alarms that end it.
import type { OpenChunk } from '../results/open-chunk.ts'

export class OpenChunks {
  readonly #alarms = new Map<OpenChunk, (() => void)[]>()

  get size(): number {
    return this.#alarms.size
  }

  has(chunk: OpenChunk): boolean {
    return this.#alarms.has(chunk)
  }

  [Symbol.iterator](): IterableIterator<OpenChunk> {
    return this.#alarms.keys()
  }

  /** `cancelAlarm` is called when the chunk is closed. */
  add(chunk: OpenChunk, cancelAlarm: () => void): void {
    this.#alarms.set(chunk, [cancelAlarm])
  }

  /** Adds another alarm of an open chunk. */
  addAlarm(chunk: OpenChunk, cancelAlarm: () => void): void {
    this.#alarms.get(chunk)?.push(cancelAlarm)
  }

  delete(chunk: OpenChunk): void {
    this.cancelAlarms(chunk)
    this.#alarms.delete(chunk)
  }

  cancelAlarms(chunk: OpenChunk): void {
    for (const cancel of this.#alarms.get(chunk) ?? []) cancel()
  }

  clear(): void {
    this.#alarms.clear()
  }
}
