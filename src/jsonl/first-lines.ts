// Finds the first line of a file with the same request, for batches that send identical requests once. Planning stores
// it with each chunk, so that every worker knows it, also after a restart.
import { hash } from 'node:crypto'
import { deflateRawSync, inflateRawSync } from 'node:zlib'
import type { DedupeMode } from '../domain/batch.ts'
import type { ChunkLine } from './chunk-lines.ts'

/** The same for the same request, and for no other; null for a line that is sent whatever others ask. */
export function requestHash(dedupe: DedupeMode | null, bytes: Buffer, line: ChunkLine): string | null {
  const { body, isRepeatable } = line
  if (dedupe === null || (dedupe === 'repeatable' && !isRepeatable)) return null
  return hash('sha256', bytes.subarray(body.start, body.end), 'base64')
}

/** A table of 42 MiB when it is full. Later requests are no longer remembered. */
const ENTRIES_MAX = 1_500_000
/** 128 bits of a request's hash, and the line number. */
const WORDS = 5
const LOAD_MAX = 0.72

/** The first line of each request, in an open-addressing hash table. */
export class FirstLines {
  #table = new Uint32Array(1024 * WORDS)
  #size = 0

  /** 0 for the first line with this request. */
  take(request: string, line: number): number {
    const words = new Uint32Array(Uint8Array.from(Buffer.from(request, 'base64').subarray(0, 16)).buffer)
    const at = this.#find(words)
    const first = this.#table[at + 4] ?? 0
    if (first !== 0) return first
    if (this.#size === ENTRIES_MAX) return 0
    this.#table.set(words, at)
    this.#table[at + 4] = line
    this.#size++
    if (this.#size > (this.#table.length / WORDS) * LOAD_MAX) this.#grow()
    return 0
  }

  #find(words: Uint32Array): number {
    const table = this.#table
    const slots = table.length / WORDS
    for (let slot = (words[0] ?? 0) % slots; ; slot = (slot + 1) % slots) {
      const at = slot * WORDS
      if (table[at + 4] === 0) return at
      if ([0, 1, 2, 3].every((i) => table[at + i] === words[i])) return at
    }
  }

  #grow(): void {
    const old = this.#table
    this.#table = new Uint32Array(old.length * 2)
    for (let at = 0; at < old.length; at += WORDS)
      if (old[at + 4] !== 0)
        this.#table.set(old.subarray(at, at + WORDS), this.#find(old.subarray(at, at + 4)))
  }
}

/** Null where no line has an earlier one. */
export function encodeFirstLines(firsts: readonly number[]): string | null {
  if (firsts.every((first) => first === 0)) return null
  return deflateRawSync(Buffer.from(Uint32Array.from(firsts).buffer)).toString('base64')
}

export function decodeFirstLines(text: string): Uint32Array {
  return new Uint32Array(Uint8Array.from(inflateRawSync(Buffer.from(text, 'base64'))).buffer)
}
