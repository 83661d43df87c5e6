// What lines of a parked chunk have been through: attempts for their records, failures that count. It is kept by
// the worker that parked the chunk, and counts only if that worker is the next to take it up; another one, or a
// restart, begins these lines anew, as after a crash.

import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Job } from './lane.ts'

/** Lines that are remembered at most; beyond it the chunks that were parked first are forgotten. */
const LINES_MAX = 20_000

interface Parked {
  /** Of the claim under which it was parked. */
  epoch: number
  jobs: readonly Job[]
}

export class ParkedTries {
  /** By batch and index; those parked first stand first. */
  readonly #chunks = new Map<string, Parked>()
  #lines = 0

  /** `jobs`: those of its lines that were tried. Finished ones are left out. */
  keep(chunk: OpenChunk, jobs: readonly Job[]): void {
    this.#forget(nameOf(chunk))
    const unfinished = jobs.filter((job) => !chunk.isFinished(job.position))
    if (unfinished.length === 0) return
    this.#chunks.set(nameOf(chunk), { epoch: chunk.claim.epoch, jobs: unfinished })
    this.#lines += unfinished.length
    for (const name of this.#chunks.keys()) {
      if (this.#lines <= LINES_MAX) break
      this.#forget(name)
    }
  }

  /** What is known of the lines of a chunk that has just been claimed; it is handed out once. */
  take(chunk: OpenChunk): Job[] {
    const name = nameOf(chunk)
    const parked = this.#chunks.get(name)
    if (!parked) return []
    this.#forget(name)
    // Every claim raises the epoch, so nobody has had it in between.
    if (parked.epoch !== chunk.claim.epoch - 1) return []
    return parked.jobs.filter((job) => !chunk.isFinished(job.position)).map((job) => ({ ...job, chunk }))
  }

  #forget(name: string): void {
    this.#lines -= this.#chunks.get(name)?.jobs.length ?? 0
    this.#chunks.delete(name)
  }
}

function nameOf({ claim }: OpenChunk): string {
  return `${claim.batch_id} ${claim.idx}`
}
