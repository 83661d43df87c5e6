// Finds orphans, the blobs that a crash has left without a row, and deletes them.
import type { Blobs, StoredBlob } from '../blobs/blobs.ts'
import { knownBlobs } from '../store/blobs.ts'
import { claimInterval } from '../store/database-properties.ts'
import type { Ports, Reader } from '../store/store.ts'

/** Longer than any upload or seal takes between its blob and its commit. */
export const ORPHAN_AGE_MS = 60 * 60_000
/** Blobs that are committed are no older, so what is about to be committed is never found to be unknown twice. */
export const BLOB_FRESH_MS = 2 * 60_000
const KEYS_AT_ONCE = 500
/** The most suspects of one sweep; the next sweep goes on. */
const SUSPECTS_MAX = 100_000

interface SweepPorts extends Pick<Ports, 'store' | 'clock'> {
  blobs: Blobs
}

export interface SweepPace {
  /** How old a blob without a row is before it is suspected. */
  orphanAgeMs: number
  /** How often the store is looked through, by one worker for all. */
  everyMs: number
  /** How often each worker asks whether it is the one. */
  askEveryMs: number
  /** Between the two looks at a blob: longer than a commit takes that is under way. */
  secondLookMs: number
}

const PACE: SweepPace = {
  orphanAgeMs: ORPHAN_AGE_MS,
  everyMs: 60 * 60_000,
  askEveryMs: 5 * 60_000,
  secondLookMs: 5 * 60_000,
}

export class OrphanSweep {
  readonly #ports: SweepPorts
  readonly #pace: SweepPace
  #askAt = 0
  #suspects: { found: StoredBlob[]; checkAt: number } | null = null

  /** Another pace is used where no commit can be under way, and in the simulation. */
  constructor(ports: SweepPorts, pace = PACE) {
    this.#ports = ports
    this.#pace = pace
  }

  /**
   * To be called now and then. Of all workers that do, one at a time looks through the store. `began`: this
   * one has begun to; `removed`: orphans that are gone now.
   */
  async tick(): Promise<{ began: boolean; removed: number }> {
    const { store, blobs, clock } = this.#ports
    const { orphanAgeMs, everyMs, askEveryMs, secondLookMs } = this.#pace
    const now = clock.now()
    if (this.#suspects && clock.steady() >= this.#suspects.checkAt) {
      const { found } = this.#suspects
      this.#suspects = null
      return { began: false, removed: await removeUnknown(blobs, store.read, found) }
    }
    // A clock that was ahead has asked for a time that is too late.
    const isEarly = now < this.#askAt && now >= this.#askAt - askEveryMs
    if (this.#suspects || isEarly) return { began: false, removed: 0 }
    this.#askAt = now + askEveryMs
    const began = await store.write((tx) => claimInterval(tx, 'swept_at', everyMs))
    if (began) {
      const found: StoredBlob[] = []
      const before = clock.now() - orphanAgeMs
      for await (const blob of unknownBlobs(store.read, blobs.list(''), { before }))
        if (found.push(blob) >= SUSPECTS_MAX) break
      if (found.length > 0) this.#suspects = { found, checkAt: clock.steady() + secondLookMs }
    }
    return { began, removed: 0 }
  }
}

/**
 * Those of the blobs that the database does not know, or that it cannot open where `isOpenable` asks for that; only blobs
 * from before `before` (Unix ms).
 */
export async function* unknownBlobs(
  db: Reader,
  blobs: AsyncIterable<StoredBlob> | Iterable<StoredBlob>,
  { before = Number.POSITIVE_INFINITY, isOpenable = false }: { before?: number; isOpenable?: boolean } = {},
): AsyncGenerator<StoredBlob> {
  let some: StoredBlob[] = []
  const unknown = async (): Promise<StoredBlob[]> => {
    const asked = some
    some = []
    const keys = asked.map(({ key }) => key)
    const known = await knownBlobs(db, keys, isOpenable)
    return asked.filter(({ key }) => !known.has(key))
  }
  for await (const blob of blobs) {
    if (blob.modified > before) continue
    some.push(blob)
    if (some.length >= KEYS_AT_ONCE) yield* await unknown()
  }
  yield* await unknown()
}

/** Removes those of the blobs that the database does not know; returns how many. */
export async function removeUnknown(from: Blobs, ...asked: Parameters<typeof unknownBlobs>): Promise<number> {
  let removed = 0
  for await (const { key } of unknownBlobs(...asked)) {
    await from.delete(key)
    removed++
  }
  return removed
}
