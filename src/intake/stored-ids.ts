// Keeps the custom_ids of a file while it is validated. Memory holds those of a bounded number of lines; the entries of
// earlier lines are in blobs, by shard, so that one shard of all lines can be read at a time. The index of the
// custom_ids is made of them.

import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import { freeBuffer } from '../domain/free-buffer.ts'
import { mapAhead } from '../domain/project-queue.ts'
import { customIdIndex, type Entries, EqualHashes, type OnCollision } from '../jsonl/custom-ids.ts'

/** Six megabytes. */
export const IDS_IN_MEMORY_MAX = 350_000

/** Frames of blobs are opened as a whole, so that fewer of them at once would be opened more often. */
const SHARDS_PER_READ = 4
/** Read at once, beyond the first. */
const PARTS_AHEAD = 3

interface StoredPart {
  blob: SealedBlob
  /** Where the entries of each shard end. */
  ends: number[]
}

export class StoredIds {
  readonly #sealed: SealedBlobs
  readonly #project_id: string
  readonly #key: string
  readonly #parts: StoredPart[] = []

  /** `key`: of the index. */
  constructor(sealed: SealedBlobs, project_id: string, key: string) {
    this.#sealed = sealed
    this.#project_id = project_id
    this.#key = key
  }

  /** Stores entries by shard, and frees their memory. They are of later lines than those before. */
  async add(shards: readonly Entries[]): Promise<void> {
    let end = 0
    const ends = shards.map(({ byteLength }) => {
      end += byteLength
      return end
    })
    const pieces = shards.map(({ buffer }) => new Uint8Array(buffer))
    const key = `${this.#key}-part${this.#parts.length}`
    const part = { blob: await this.#sealed.put(this.#project_id, key, pieces), ends }
    this.#parts.push(part)
    for (const piece of pieces) freeBuffer(piece)
  }

  /**
   * Stores the index of all entries, `last` with them. Null, and nothing is stored, without the seed of the hash, and if two
   * hashes are equal: the later line of each such pair is told.
   */
  async storeIndex(
    seed: Uint32Array<ArrayBuffer> | null,
    last: readonly Entries[],
    onCollision: OnCollision = () => {},
  ): Promise<SealedBlob | null> {
    let read: Entries[][] = []
    const partsOf = async (shard: number): Promise<Entries[]> => {
      const at = shard % SHARDS_PER_READ
      if (at === 0) {
        read = []
        const parts = mapAhead(this.#parts, PARTS_AHEAD, (part) => this.#read(part, shard))
        for await (const shards of parts) read.push(shards)
      }
      return [...read.map((shards) => shards[at]!), last[shard]!]
    }
    const pieces = customIdIndex(seed, partsOf, onCollision)
    if (seed === null) {
      await pieces.next()
      return null
    }
    try {
      return await this.#sealed.put(this.#project_id, this.#key, pieces)
    } catch (error) {
      if (error instanceof EqualHashes) return null
      throw error
    }
  }

  /** The entries of SHARDS_PER_READ shards. */
  async #read({ blob, ends }: StoredPart, first: number): Promise<Entries[]> {
    const startOf = (shard: number): number => ends[shard - 1] ?? 0
    const range = { start: startOf(first), end: startOf(first + SHARDS_PER_READ) }
    const bytes = await this.#sealed.readAll(this.#project_id, blob, range)
    const shards = Array.from({ length: SHARDS_PER_READ }, (_, at) => {
      const [start, end] = [startOf(first + at) - range.start, startOf(first + at + 1) - range.start]
      return new Uint32Array(new Uint8Array(bytes.subarray(start, end)).buffer)
    })
    freeBuffer(bytes)
    return shards
  }

  /** Deletes what `add` stored. What cannot be deleted is an orphan. */
  async discard(): Promise<void> {
    await Promise.allSettled(this.#parts.splice(0).map(({ blob }) => this.#sealed.delete(blob.key)))
  }
}
