// Bounds the reads that take much time and memory of this process: tables, reports, pages of results, lines of a batch.
// A project may have a number of them open, and a number waiting. Open reads of all projects proceed in turn, a piece
// at a time: another call waits for a few pieces, however many tables a project reads. A read without a reader takes no
// turns.
import type { ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { ApiError } from '../../domain/errors.ts'
import { type QuotaName, quotaExceeded } from '../../domain/plan.ts'
import { ProjectQueue, type QueueBounds, QueueFull, SharedSlots } from '../../domain/project-queue.ts'
import type { QuotaHolder } from '../../intake/check-quota.ts'
import { whenClosed } from './long-calls.ts'

/** Each holds some MiB, and a slow reader may hold it for long. */
const OPEN: QueueBounds = { atOnce: 64, perProject: 4, waitingMax: 100 }
/** More would not be faster: they share a thread. */
const WORKING: QueueBounds = { atOnce: 4, perProject: 2 }
const RETRY_S = 5

export class HeavyReads {
  readonly #open = new ProjectQueue(OPEN)
  readonly #working = new ProjectQueue(WORKING)

  /** Waits until the project may open one more; it is open until the answer has been sent, or its caller has left. */
  async open(project_id: string, answer: ServerResponse): Promise<HeavyRead> {
    const left = new AbortController()
    const leave = (): void =>
      left.abort(new ApiError('invalid_request', 'The connection ended before the answer was complete.'))
    whenClosed(answer, leave)
    try {
      const close = await this.#open.enter(project_id, left.signal)
      left.signal.addEventListener('abort', close, { once: true })
    } catch (error) {
      if (!(error instanceof QueueFull)) throw error
      const message = `${OPEN.waitingMax} reads of tables, results and lines of this project wait already.`
      throw new ApiError('rate_limit_exceeded', message, {}, RETRY_S)
    }
    return new HeavyRead(this.#working, project_id, left.signal)
  }
}

export class HeavyRead {
  /** Aborts when the answer has been sent, or its caller has left. */
  readonly closed: AbortSignal
  readonly #working: ProjectQueue
  readonly #project_id: string
  #endTurn = (): void => {}

  constructor(working: ProjectQueue, project_id: string, closed: AbortSignal) {
    this.#working = working
    this.#project_id = project_id
    this.closed = closed
  }

  /** Runs `act` in its turn. */
  async turn<T>(act: () => Promise<T>): Promise<T> {
    await this.#begin()
    try {
      return await act()
    } finally {
      this.#endTurn()
    }
  }

  /** Within a turn: waits for what works elsewhere, while others have theirs. */
  async outside<T>(act: () => Promise<T>): Promise<T> {
    this.#endTurn()
    const result = await act()
    await this.#begin()
    return result
  }

  /** `pieces` as the body of an answer, each read in its turn. */
  stream(pieces: AsyncIterable<Buffer>): Readable {
    return Readable.from(this.inTurns(pieces), { objectMode: false })
  }

  /** `pieces`, each read in its turn. */
  async *inTurns<T>(pieces: AsyncIterable<T>): AsyncGenerator<T> {
    const iterator = pieces[Symbol.asyncIterator]()
    try {
      for (;;) {
        const { value, done } = await this.turn(() => iterator.next())
        if (done) return
        yield value
      }
    } finally {
      await iterator.return?.()
    }
  }

  async #begin(): Promise<void> {
    // SQLite answers at once: without this no other call would be served between two pieces.
    await new Promise((resolve) => setImmediate(resolve))
    this.#endTurn = await this.#working.enter(this.#project_id, this.closed)
  }
}

const SLOT_RETRY_S = 1

/** Slots of one API process for each project, bounded by a quota of its plan and by its share of the process. */
export class ProjectSlots {
  readonly #quota: QuotaName
  readonly #slots: SharedSlots

  /** `max`: for all projects together. */
  constructor(quota: QuotaName, max: number) {
    this.#quota = quota
    this.#slots = new SharedSlots(max)
  }

  used(project_id: string): number {
    return this.#slots.used(project_id)
  }

  /** Takes a slot until the answer is closed. Throws quota_exceeded and service_unavailable. */
  take({ project_id, quotas }: QuotaHolder, answer: ServerResponse): void {
    const limit = quotas[this.#quota]
    const used = this.used(project_id)
    if (limit !== null && used >= limit) throw quotaExceeded(this.#quota, limit, used, 1)
    const giveBack = this.#slots.take(project_id)
    if (!giveBack) throw new ApiError('service_unavailable', undefined, {}, SLOT_RETRY_S)
    whenClosed(answer, giveBack)
  }
}
