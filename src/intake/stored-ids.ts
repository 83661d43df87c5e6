// Stores the custom_ids of a file during its validation. A bounded number of custom_ids is in memory; the entries of
// earlier lines are in blobs, by shard, so that one shard of all lines can be read at a time. They make the index of
// custom_ids.

import { discardBlobs, type SealedBlob, type SealedBlobs } from '../blobs/sealed.ts'
import { freeBuffer } from '../domain/free-buffer.ts'
import { mapAhead } from '../domain/project-queue.ts'
import { customIdIndex, type Entries, EqualHashes, type OnCollision } from '../jsonl/custom-ids.ts'

/** The number of custom_ids in memory: some six megabytes. */
export const IDS_IN_MEMORY_MAX = 350_000

/** Shards that are read at once: a frame of a blob is opened as a whole, so fewer shards would open it more often. */
const SHARDS_PER_READ = 4
/** The number of parts that are read ahead. */
const PARTS_AHEAD = 3

interface StoredPart {
  blob: SealedBlob
  /** The end of each shard's entries in the blob. */
  ends: number[]
}

export class StoredIds {
  readonly #sealed: SealedBlobs
  readonly #project_id: string
  readonly #key: string
  readonly #parts: StoredPart[] = []

  /** Makes a store of IDs. `key`: the blob key of the index, from which the keys of its parts are made. */
  constructor(sealed: SealedBlobs, project_id: string, key: string) {
    this.#sealed = sealed
    this.#project_id = project_id
    this.#key = key
  }

  /** Stores the entries of the next lines by shard, and frees their memory. */
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
   * Stores the index of all entries, `last` being the last ones. Stores nothing and returns null without a seed, or if
   * two hashes are equal: the later line of each such pair is reported.
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

  /** Reads the entries of SHARDS_PER_READ shards. */
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

  /** Deletes the blobs of `add`. */
  async discard(): Promise<void> {
    await discardBlobs(
      this.#sealed,
      this.#parts.splice(0).map(({ blob }) => blob),
    )
  }
}
