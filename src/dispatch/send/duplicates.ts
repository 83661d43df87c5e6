// Identical requests of a batch that are to be sent once. While one of them (the leader) is being sent, the others
// follow: they are in no queue, and end with what the leader ends with. The answers of earlier leaders are remembered
// within a bound, for lines that come later. All of it is the memory of one worker: a request may be sent once more by
// another worker, after a restart, or when its answer was forgotten.
import { hash } from 'node:crypto'
import { base32 } from '../../domain/ids.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { SharedFrom } from '../../results/result-line.ts'
import type { Job } from './lane.ts'
import type { Answered } from './line-outcome.ts'

/** Answers remembered, all together; and the largest that is. */
const BYTES_MAX = 32 * 1024 * 1024
const ANSWER_BYTES_MAX = 4 * 1024 * 1024
/** What remembering an answer takes beside its bytes. */
const OVERHEAD_BYTES = 1024

export interface SharedAnswer {
  result: Answered
  from: SharedFrom
}

interface Group {
  leader: Job
  followers: Job[]
}

export class Duplicates {
  /** Requests that are being sent, or wait for another attempt. */
  readonly #groups = new Map<string, Group>()
  readonly #keys = new WeakMap<Job, string>()
  /** The one that was used longest ago first. */
  readonly #answers = new Map<string, SharedAnswer>()
  #bytes = 0

  /** What is to be done with a line whose turn it is: send it, leave it to its leader, or end it with this answer. */
  take(job: Job): 'send' | 'follow' | SharedAnswer {
    const key = keyOf(job)
    if (key === null) return 'send'
    const group = this.#groups.get(key)
    if (group) {
      if (group.leader === job) return 'send'
      group.followers.push(job)
      return 'follow'
    }
    const known = this.#answers.get(key)
    if (known) {
      this.#answers.delete(key)
      this.#answers.set(key, known)
      return known
    }
    this.#groups.set(key, { leader: job, followers: [] })
    this.#keys.set(job, key)
    return 'send'
  }

  /** A leader was answered; returns its followers. */
  answered(job: Job, result: Answered): Job[] {
    const key = this.#keys.get(job)
    if (key !== undefined && result.body.length <= ANSWER_BYTES_MAX)
      this.#remember(key, { result, from: sharedFrom(job) })
    return this.ended(job)
  }

  /** A line leads no longer; returns its followers. */
  ended(job: Job): Job[] {
    const key = this.#keys.get(job)
    const group = key === undefined ? undefined : this.#groups.get(key)
    if (key === undefined || group?.leader !== job) return []
    this.#groups.delete(key)
    return group.followers
  }

  /** Returns the chunk's lines that follow others, which they do no longer. */
  leave(chunk: OpenChunk): Job[] {
    const left: Job[] = []
    if (chunk.batch.dedupe === null) return left
    for (const group of this.#groups.values()) {
      if (!group.followers.some((job) => job.chunk === chunk)) continue
      left.push(...group.followers.filter((job) => job.chunk === chunk))
      group.followers = group.followers.filter((job) => job.chunk !== chunk)
    }
    return left
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

export function sharedFrom({ chunk, position }: Job): SharedFrom {
  const { line, custom_id_json } = chunk.lines[position]!
  return { request_id: chunk.requestIdPrefix + base32(line), custom_id_json }
}

/** Null for a line that is sent whatever others ask. All lines of a batch have the same endpoint. */
function keyOf({ chunk, position }: Job): string | null {
  const { batch, bytes, lines } = chunk
  const { body, isRepeatable } = lines[position]!
  if (batch.dedupe === null || (batch.dedupe === 'repeatable' && !isRepeatable)) return null
  return `${batch.id} ${hash('sha256', bytes.subarray(body.start, body.end), 'base64')}`
}
