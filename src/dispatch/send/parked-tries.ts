// Tries of the lines of a parked chunk. The worker that parked it keeps the attempts for their records in memory, and
// uses them if it claims the chunk next. The counts that bound the tries are stored with the chunk, for any worker.

import type { OpenChunk } from '../../results/open-chunk.ts'
import { freshJob, type Job } from './lane.ts'
import type { TryCount } from './retry-policy.ts'

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

  /** The tried lines of a chunk that has just been claimed, once; null where this worker did not park it last. */
  take(chunk: OpenChunk): Job[] | null {
    const name = nameOf(chunk)
    const parked = this.#chunks.get(name)
    if (!parked) return null
    this.#forget(name)
    // Every claim raises the epoch, so nobody has had it in between.
    if (parked.epoch !== chunk.claim.epoch - 1) return null
    return parked.jobs.filter((job) => !chunk.isFinished(job.position)).map((job) => ({ ...job, chunk }))
  }

  #forget(name: string): void {
    this.#lines -= this.#chunks.get(name)?.jobs.length ?? 0
    this.#chunks.delete(name)
  }
}

/** What is stored with a chunk: a list of line numbers, each with its counts. */
export function lineTriesOf(chunk: OpenChunk, jobs: Iterable<Job>): string | null {
  const lines: [line: number, tries: TryCount][] = []
  for (const { position, tries } of jobs)
    if (!chunk.isFinished(position)) lines.push([chunk.lines[position]!.line, tries])
  return lines.length === 0 ? null : JSON.stringify(lines)
}

/** The lines of a claimed chunk that were tried under earlier leases: attempts that are not known are only counted. */
export function jobsOfLineTries(chunk: OpenChunk): Job[] {
  const tries = new Map<number, TryCount>(JSON.parse(chunk.claim.line_tries ?? '[]'))
  const jobs: Job[] = []
  if (tries.size === 0) return jobs
  for (const [position, { line }] of chunk.lines.entries()) {
    const counted = tries.get(line)
    if (!counted || chunk.isFinished(position)) continue
    const attempts_omitted = counted.failures + counted.throttles
    jobs.push({ ...freshJob(chunk, position), tries: counted, attempts_omitted })
  }
  return jobs
}

function nameOf({ claim }: OpenChunk): string {
  return `${claim.batch_id} ${claim.idx}`
}
