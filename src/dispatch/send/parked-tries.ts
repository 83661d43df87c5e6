// Tries of the lines of a parked chunk. The worker that parked it keeps the attempts for their records in memory, and
// uses them if it claims the chunk next. The counts that bound the tries are stored with the chunk, for any worker.

import type { OpenChunk } from '../../results/open-chunk.ts'
import { freshJob, type Job } from './lane.ts'
import type { TryCount } from './retry-policy.ts'

/** Lines remembered at most; beyond that, the chunks that were parked first are forgotten. */
const LINES_MAX = 20_000

interface Parked {
  /** The epoch of the claim under which it was parked. */
  epoch: number
  jobs: readonly Job[]
}

export class ParkedTries {
  /** By batch and index, in the order in which they were parked. */
  readonly #chunks = new Map<string, Parked>()
  #lines = 0

  /** `jobs`: the chunk's tried lines; finished ones are ignored. */
  keep(chunk: OpenChunk, jobs: readonly Job[]): void {
    this.#forget(keyOf(chunk))
    const unfinished = jobs.filter((job) => !chunk.isFinished(job.position))
    if (unfinished.length === 0) return
    this.#chunks.set(keyOf(chunk), { epoch: chunk.claim.epoch, jobs: unfinished })
    this.#lines += unfinished.length
    for (const key of this.#chunks.keys()) {
      if (this.#lines <= LINES_MAX) break
      this.#forget(key)
    }
  }

  /** Returns the tried lines of a chunk that was just claimed, once; null unless this worker parked it last. */
  take(chunk: OpenChunk): Job[] | null {
    const key = keyOf(chunk)
    const parked = this.#chunks.get(key)
    if (!parked) return null
    this.#forget(key)
    // Every claim raises the epoch: no other worker claimed it in between.
    if (parked.epoch !== chunk.claim.epoch - 1) return null
    return parked.jobs.filter((job) => !chunk.isFinished(job.position)).map((job) => ({ ...job, chunk }))
  }

  #forget(key: string): void {
    this.#lines -= this.#chunks.get(key)?.jobs.length ?? 0
    this.#chunks.delete(key)
  }
}

/** The value of the column `line_tries`: a list of line numbers, each with its counts. */
export function lineTriesOf(chunk: OpenChunk, jobs: Iterable<Job>): string | null {
  const lines: [line: number, tries: TryCount][] = []
  for (const { position, tries } of jobs)
    if (!chunk.isFinished(position)) lines.push([chunk.lines[position]!.line, tries])
  return lines.length === 0 ? null : JSON.stringify(lines)
}

/** The lines of a claimed chunk that were tried under earlier leases; their attempts are counted but not known. */
export function jobsOfLineTries(chunk: OpenChunk): Job[] {
  const tries = new Map<number, TryCount>(JSON.parse(chunk.claim.line_tries ?? '[]'))
  const jobs: Job[] = []
  if (tries.size === 0) return jobs
  for (const [position, { line }] of chunk.lines.entries()) {
    const counted = tries.get(line)
    if (!counted || chunk.isFinished(position)) continue
    const attemptsOmitted = counted.failures + counted.throttles
    jobs.push({ ...freshJob(chunk, position), tries: counted, attemptsOmitted })
  }
  return jobs
}

function keyOf({ claim }: OpenChunk): string {
  return `${claim.batch_id} ${claim.idx}`
}
