// Identical requests of a batch that are to be sent once. While one of them (the leader) is being sent, the others
// follow: they are in no queue, and end with what the leader ends with. The answers of earlier leaders are remembered
// within a bound, for lines that come later. Answers that this worker has forgotten, or never had, are looked for where
// they are stored (earlier-answers.ts) before a request is sent: the line that asks leads its group meanwhile.
import type { Clock } from '../../domain/clock.ts'
import type { WireError } from '../../domain/errors.ts'
import { base32 } from '../../domain/ids.ts'
import { requestHash } from '../../jsonl/first-lines.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Outcome } from '../../results/outcome.ts'
import type { SharedFrom } from '../../results/result-line.ts'
import type { EarlierAnswers } from './earlier-answers.ts'
import type { Job } from './lane.ts'
import { type Answered, failed, type SharedAnswer, shared } from './line-outcome.ts'

/** Answers remembered, all together; and the largest that is. */
const BYTES_MAX = 32 * 1024 * 1024
const ANSWER_BYTES_MAX = 4 * 1024 * 1024
/** What remembering an answer takes beside its bytes. */
const OVERHEAD_BYTES = 1024

const UNFOUND_MAX = 10_000

interface Group {
  leader: Job
  followers: Job[]
  /** While the answer is looked for. */
  search: AbortController | null
}

export interface DuplicatesOptions {
  clock: Clock
  earlier?: Pick<EarlierAnswers, 'firstOf' | 'find'> | undefined
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
  /** Requests without an earlier answer, until one of them is sent. */
  readonly #unfound = new Set<string>()
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
    const { earlier } = this.#options
    const isKnown = this.#unfound.delete(key) || job.attempts.length > 0
    const isSent = earlier === undefined || isKnown || earlier.firstOf(job) === 0
    const search = isSent ? null : new AbortController()
    this.#groups.set(key, { leader: job, followers: [], search })
    this.#keys.set(job, key)
    if (search) void this.#search(key, job, search.signal)
    return isSent
  }

  /** If no answer is found, the next of the group whose turn it is is sent. */
  async #search(key: string, job: Job, signal: AbortSignal): Promise<void> {
    const answer = (await this.#options.earlier?.find(job, signal)) ?? null
    if (signal.aborted) return
    const all = [job, ...this.#ended(job)]
    if (answer) this.#remember(key, answer)
    else this.#sendNext(key)
    for (const one of all) {
      if (answer) this.#options.onOutcome(one.chunk, shared(one, answer, this.#options.clock.now()))
      else this.#options.requeue(one)
    }
  }

  #sendNext(key: string): void {
    // Those of lines that were withdrawn meanwhile are looked for once more.
    if (this.#unfound.size >= UNFOUND_MAX) this.#unfound.clear()
    this.#unfound.add(key)
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

  /** Returns the positions of the chunk's lines that follow others, or whose answer is looked for; they do no longer. */
  leave(chunk: OpenChunk): number[] {
    const left: number[] = []
    if (chunk.batch.dedupe === null) return left
    for (const group of [...this.#groups.values()]) {
      if (group.search && group.leader.chunk === chunk) {
        group.search.abort()
        left.push(group.leader.position)
        for (const one of this.#ended(group.leader)) {
          if (one.chunk === chunk) left.push(one.position)
          else this.#options.requeue(one)
        }
        continue
      }
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
export function requestKey({ batch, bytes, lines }: OpenChunk, position: number): string | null {
  const request = requestHash(batch.dedupe, bytes, lines[position]!)
  return request === null ? null : `${batch.id} ${request}`
}
