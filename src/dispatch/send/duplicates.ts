// Identical requests of a batch that are to be sent once. While one of them (the leader) is being sent, the others
// follow: they are in no queue, and end with what the leader ends with. The answers of earlier leaders are remembered
// within a bound, for lines that come later. All of it is the memory of one worker: a request may be sent once more by
// another worker, after a restart, or when its answer was forgotten.
import { hash } from 'node:crypto'
import type { WireError } from '../../domain/errors.ts'
import { base32 } from '../../domain/ids.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Outcome } from '../../results/outcome.ts'
import type { SharedFrom } from '../../results/result-line.ts'
import type { Job } from './lane.ts'
import { type Answered, failed, type SharedAnswer, shared } from './line-outcome.ts'

/** Answers remembered, all together; and the largest that is. */
const BYTES_MAX = 32 * 1024 * 1024
const ANSWER_BYTES_MAX = 4 * 1024 * 1024
/** What remembering an answer takes beside its bytes. */
const OVERHEAD_BYTES = 1024

interface Group {
  leader: Job
  followers: Job[]
}

export interface DuplicatesOptions {
  /** Called for a line that ends with what an identical one ended with. */
  onOutcome: (chunk: OpenChunk, outcome: Outcome) => void
  /** Queues a line whose leader is not sent now. */
  requeue: (job: Job) => void
}

export class Duplicates {
  readonly #options: DuplicatesOptions
  /** Requests that are being sent, or wait for another attempt. */
  readonly #groups = new Map<string, Group>()
  readonly #keys = new WeakMap<Job, string>()
  /** The one that was used longest ago first. */
  readonly #answers = new Map<string, SharedAnswer>()
  #bytes = 0

  constructor(options: DuplicatesOptions) {
    this.#options = options
  }

  /** Whether to send a line whose turn it is. If not, it follows an identical one, or has ended with its answer. */
  take(job: Job, now: number): boolean {
    const key = keyOf(job)
    if (key === null) return true
    const group = this.#groups.get(key)
    if (group) {
      if (group.leader === job) return true
      group.followers.push(job)
      return false
    }
    const known = this.#answers.get(key)
    if (known) {
      this.#answers.delete(key)
      this.#answers.set(key, known)
      this.#options.onOutcome(job.chunk, shared(job, known, now))
      return false
    }
    this.#groups.set(key, { leader: job, followers: [] })
    this.#keys.set(job, key)
    return true
  }

  /** A line was answered: those that follow it share the answer. */
  answered(job: Job, result: Answered, now: number): void {
    const key = this.#keys.get(job)
    if (key === undefined) return
    const answer = { result, from: sharedFrom(job) }
    if (result.body.length <= ANSWER_BYTES_MAX) this.#remember(key, answer)
    for (const one of this.#ended(job)) this.#options.onOutcome(one.chunk, shared(one, answer, now))
  }

  /** Ends a line with the answer that an identical one had, if it is known. */
  share(job: Job, now: number): boolean {
    const key = keyOf(job)
    const known = key === null ? undefined : this.#answers.get(key)
    if (known) this.#options.onOutcome(job.chunk, shared(job, known, now))
    return known !== undefined
  }

  /** A batch API has answered a line. */
  learn(job: Job, result: Answered): void {
    const key = keyOf(job)
    if (key === null || this.#answers.has(key) || result.body.length > ANSWER_BYTES_MAX) return
    this.#remember(key, { result, from: sharedFrom(job) })
  }

  /** Ends a line with an error. What a server makes of a request, it makes of all that are identical. */
  fail(job: Job, error: WireError, now: number): void {
    const { onOutcome } = this.#options
    onOutcome(job.chunk, failed(job, error, now))
    for (const one of this.#ended(job)) onOutcome(one.chunk, failed(one, error, now, sharedFrom(job)))
  }

  /** A line is not sent now: those that follow it are queued, so that one of them is sent in its place. */
  release(job: Job): void {
    for (const one of this.#ended(job)) this.#options.requeue(one)
  }

  /** Returns the positions of the chunk's lines that follow others, which they do no longer. */
  leave(chunk: OpenChunk): number[] {
    const left: number[] = []
    if (chunk.batch.dedupe === null) return left
    for (const group of this.#groups.values()) {
      const leaving = group.followers.filter((job) => job.chunk === chunk)
      if (leaving.length === 0) continue
      left.push(...leaving.map(({ position }) => position))
      group.followers = group.followers.filter((job) => job.chunk !== chunk)
    }
    return left
  }

  #ended(job: Job): readonly Job[] {
    const key = this.#keys.get(job)
    const group = key === undefined ? undefined : this.#groups.get(key)
    if (key === undefined || group?.leader !== job) return []
    this.#groups.delete(key)
    return group.followers
  }

  #remember(key: string, answer: SharedAnswer): void {
    this.#answers.set(key, answer)
    this.#bytes += answer.result.body.length + OVERHEAD_BYTES
    for (const [oldest, { result }] of this.#answers) {
      if (this.#bytes <= BYTES_MAX) return
      this.#answers.delete(oldest)
      this.#bytes -= result.body.length + OVERHEAD_BYTES
    }
  }
}

function sharedFrom({ chunk, position }: Job): SharedFrom {
  const { line, custom_id_json } = chunk.lines[position]!
  return { request_id: chunk.requestIdPrefix + base32(line), custom_id_json }
}

function keyOf({ chunk, position }: Job): string | null {
  return requestKey(chunk, position)
}

/** Null for a line that is sent whatever others ask. All lines of a batch have the same endpoint. */
export function requestKey(chunk: OpenChunk, position: number): string | null {
  const { batch, bytes, lines } = chunk
  const { body, isRepeatable } = lines[position]!
  if (batch.dedupe === null || (batch.dedupe === 'repeatable' && !isRepeatable)) return null
  return `${batch.id} ${hash('sha256', bytes.subarray(body.start, body.end), 'base64')}`
}
