// Finds the first line of a file with the same request, for batches that send identical requests once. Planning stores
// it with each chunk, so that every worker knows it, also after a restart.
import { hash } from 'node:crypto'
import { deflateRawSync, inflateRawSync } from 'node:zlib'
import type { DedupeMode } from '../domain/batch.ts'
import type { Span } from './json-scan.ts'

/** A key that only identical requests share; null for a line that is never deduplicated. */
export function requestHash(
  dedupe: DedupeMode | null,
  bytes: Buffer,
  line: { body: Span; isRepeatable: boolean },
): string | null {
  const { body, isRepeatable } = line
  if (dedupe === null || (dedupe === 'repeatable' && !isRepeatable)) return null
  return hash('sha256', bytes.subarray(body.start, body.end), 'base64')
}

/** The limit of remembered requests: the table then takes 42 MiB. */
const ENTRIES_MAX = 1_500_000
/** Words of an entry: 128 bits of a request's hash, and the line number. */
const WORDS = 5
const LOAD_MAX = 0.72

/** The first line of each request, in an open-addressing hash table. */
export class FirstLines {
  #table = new Uint32Array(1024 * WORDS)
  #size = 0

  /** The number of the first line with this request; 0 if it is this line. */
  findOrAdd(request: string, line: number): number {
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

/** The encoded first lines of a chunk; null if no line repeats an earlier one. */
export function encodeFirstLines(firsts: readonly number[]): string | null {
  if (firsts.every((first) => first === 0)) return null
  return packNumbers(firsts)
}

export function packNumbers(numbers: readonly number[]): string {
  return deflateRawSync(Buffer.from(Uint32Array.from(numbers).buffer)).toString('base64')
}

export function unpackNumbers(text: string): Uint32Array {
  return new Uint32Array(Uint8Array.from(inflateRawSync(Buffer.from(text, 'base64'))).buffer)
}
