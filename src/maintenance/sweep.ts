// Finds orphans, blobs without a row after a crash, and deletes them.
import type { Blobs, StoredBlob } from '../blobs/blobs.ts'
import { knownBlobs } from '../store/blobs.ts'
import { claimInterval } from '../store/database-properties.ts'
import type { Ports, Reader } from '../store/store.ts'

/** The age from which an unknown blob may be an orphan: an upload or seal commits its blobs sooner. */
export const ORPHAN_AGE_MS = 60 * 60_000
/** The age up to which a blob may be committed, so that no blob about to be committed is found unknown twice. */
export const BLOB_FRESH_MS = 2 * 60_000
const KEYS_AT_ONCE = 500
/** The limit of suspects of one sweep; the next sweep finds the others. */
const SUSPECTS_MAX = 100_000

interface SweepPorts extends Pick<Ports, 'store' | 'clock'> {
  blobs: Blobs
}

export interface SweepPace {
  /** The age in ms from which a blob without a row is a suspect. */
  orphanAgeMs: number
  /** The interval in ms of sweeps, each by one worker. */
  everyMs: number
  /** The interval in ms at which each worker tries to claim the sweep. */
  askEveryMs: number
  /** The time in ms until a suspect is checked again: longer than a running commit takes. */
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

  /** Makes a sweep. `pace` differs where no commit can run, and in the simulation. */
  constructor(ports: SweepPorts, pace = PACE) {
    this.#ports = ports
    this.#pace = pace
  }

  /**
   * Runs the next step of the sweep, when called regularly; one worker at a time reads the store. `began`: this worker
   * has done so; `removed`: the number of deleted orphans.
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
    // A time set by a clock that was ahead does not count.
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
 * The blobs that the database does not know, or with `isOpenable` cannot open; only blobs from before
 * `before` (Unix ms).
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

/** Deletes the blobs that the database does not know; returns their number. */
export async function removeUnknown(from: Blobs, ...asked: Parameters<typeof unknownBlobs>): Promise<number> {
  let removed = 0
  for await (const { key } of unknownBlobs(...asked)) {
    await from.delete(key)
    removed++
  }
  return removed
}
