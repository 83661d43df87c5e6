// Long calls free what they have taken when they close, stop when their caller disconnects, and may wait for an event; the
// reads among them that take much time and memory proceed in turn.
import type { ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Clock } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { type QuotaName, quotaExceeded } from '../../domain/plan.ts'
import { ProjectQueue, type QueueBounds, QueueFull, SharedSlots } from '../../domain/project-queue.ts'
import type { QuotaHolder } from '../../intake/check-quota.ts'
import { type Fetch, recordFetch } from '../../lifecycle/fetched-results.ts'
import type { BatchRow } from '../../store/schema.ts'

/** Runs `act` once the answer has been sent or the caller has disconnected, also if that is past. */
export function whenClosed(answer: ServerResponse, act: () => void): void {
  if (answer.destroyed) act()
  else answer.once('close', act)
}

/** Runs `act` with a signal that aborts when the connection ends; then throws invalid_request. */
export async function whileConnected<T>(
  request: FastifyRequest,
  act: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const value = await untilDisconnected(request, act)
  if (request.raw.socket.destroyed) throw callerLeft()
  return value
}

function callerLeft(): ApiError {
  return new ApiError('invalid_request', 'The connection ended before the request was complete.')
}

/** Runs `act` with a signal that aborts when the connection ends. */
export async function untilDisconnected<T>(
  { raw: { socket } }: FastifyRequest,
  act: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const left = new AbortController()
  const leave = (): void => left.abort(callerLeft())
  if (socket.destroyed) leave()
  else socket.once('close', leave)
  try {
    return await act(left.signal)
  } finally {
    socket.off('close', leave)
  }
}

// A call may wait for the validation of a file, or for the end of a batch or of a line. Whatever process brings it about,
// the database has it; so calls poll, all at the same time, and keep neither a transaction nor a connection in between.
// The number of waiting calls is limited; a call above the limit does not wait.

const WAITING_MAX = 512
const WAITING_PER_PROJECT_MAX = 64
/** The bounds in ms, and the share of the time that the last call has waited, of the interval between two polls. */
const POLL_MS_MIN = 5
const POLL_MS_MAX = 1_000
const POLL_SHARE = 1 / 16
/** The time in ms by which each waiting call lengthens the shortest interval. */
const POLL_MS_EACH = 1 / 4

interface Wait {
  project_id: string
  ms: number
  /** The signal that aborts when the caller of the waiting call has disconnected. */
  signal: AbortSignal
}

export class WaitingCalls {
  readonly #clock: Clock
  readonly #closing: AbortSignal
  readonly #slots = new SharedSlots(WAITING_MAX)
  /** The next poll of all waiting calls: its time by the steady clock. */
  #next: (PromiseWithResolvers<void> & { at: number; cancel: () => void }) | null = null

  /** Makes the waits of an endpoint, which end when `closing` aborts. */
  constructor(clock: Clock, closing: AbortSignal) {
    this.#clock = clock
    this.#closing = closing
  }

  /** Resolves when `isOver`, or when the wait has reached its limit. Rejects as `isOver` does. */
  async wait({ project_id, ms, signal: left }: Wait, isOver: () => Promise<boolean>): Promise<void> {
    const mayWait = this.#slots.used(project_id) < WAITING_PER_PROJECT_MAX
    const giveBack = mayWait ? this.#slots.take(project_id) : null
    if (!giveBack) return
    const begin = this.#clock.steady()
    const signal = AbortSignal.any([left, this.#closing])
    const { promise: aborted, resolve } = Promise.withResolvers<void>()
    const leave = (): void => resolve()
    signal.addEventListener('abort', leave)
    try {
      while (!signal.aborted && !(await isOver())) {
        const waitedMs = this.#clock.steady() - begin
        if (waitedMs >= ms) return
        const leastMs = POLL_MS_MIN + this.#slots.usedByAll * POLL_MS_EACH
        const pauseMs = Math.min(Math.max(waitedMs * POLL_SHARE, leastMs), POLL_MS_MAX, ms - waitedMs)
        await Promise.race([this.#pollIn(pauseMs), aborted])
      }
    } finally {
      // Node keeps a combined signal with a listener as long as its sources, one of which the process keeps.
      signal.removeEventListener('abort', leave)
      giveBack()
      if (this.#slots.usedByAll === 0) {
        this.#next?.cancel()
        this.#next = null
      }
    }
  }

  /** Resolves at the next poll, within `pauseMs`. */
  #pollIn(pauseMs: number): Promise<void> {
    const at = this.#clock.steady() + pauseMs
    const next = this.#next ?? { ...Promise.withResolvers<void>(), at: Number.POSITIVE_INFINITY, cancel() {} }
    this.#next = next
    if (at < next.at) {
      next.cancel()
      next.at = at
      next.cancel = this.#clock.after(pauseMs, () => {
        this.#next = null
        next.resolve()
      })
    }
    return next.promise
  }
}

/** Makes a function that reads a value; what is read in one turn of the event loop is read by one call of `read`. */
export function together<K, V>(read: (keys: readonly K[]) => Promise<readonly V[]>): (key: K) => Promise<V> {
  let keys: K[] = []
  let reading: Promise<readonly V[]> | null = null
  return async (key) => {
    const at = keys.push(key) - 1
    reading ??= new Promise<void>((resolve) => setImmediate(resolve)).then(() => {
      const all = keys
      keys = []
      reading = null
      return read(all)
    })
    return (await reading)[at]!
  }
}

/** Counts results as fetched when their whole answer has been sent. */
export function whenSent(
  request: FastifyRequest,
  { raw }: FastifyReply,
  ports: Parameters<typeof recordFetch>[0],
  batch: BatchRow,
  fetch: Fetch,
): void {
  if (batch.retention === null || request.method === 'HEAD') return
  whenClosed(raw, () => {
    if (!raw.writableFinished) return
    recordFetch(ports, batch, fetch).catch((error: unknown) =>
      request.log.error({ err: error, batch_id: batch.id }, 'results that were fetched could not be ended'),
    )
  })
}

// Bounds the reads that take much time and memory of this process: tables, reports, pages of results, lines of a batch.
// A project may have a number of them open, and a number waiting. Open reads of all projects proceed in turn, a piece
// at a time: another call waits for a few pieces, however many tables a project reads. A read without a reader takes no
// turns.

/** The limits of open reads: each takes some MiB, and a slow reader may keep it for long. */
const OPEN: QueueBounds = { atOnce: 64, perProject: 4, waitingMax: 100 }
/** The limits of reads that work at once: they share a thread. */
const WORKING: QueueBounds = { atOnce: 4, perProject: 2 }
const RETRY_S = 5

export class HeavyReads {
  readonly #open = new ProjectQueue(OPEN)
  readonly #working = new ProjectQueue(WORKING)

  /** Waits until the project may open a read, which ends when the answer is sent or the caller disconnects. */
  async open(project_id: string, answer: ServerResponse): Promise<HeavyRead> {
    const read = this.begin(project_id, answer)
    await this.grow(read)
    return read
  }

  /** Begins a read that only takes turns, until it turns out to be large (`grow`). */
  begin(project_id: string, answer: ServerResponse): HeavyRead {
    const left = new AbortController()
    const leave = (): void =>
      left.abort(new ApiError('invalid_request', 'The connection ended before the answer was complete.'))
    whenClosed(answer, leave)
    return new HeavyRead(this.#working, project_id, left.signal)
  }

  /** Waits until the project may have another large read open. Throws rate_limit_exceeded. */
  async grow({ project_id, closed }: HeavyRead): Promise<void> {
    try {
      const close = await this.#open.enter(project_id, closed)
      closed.addEventListener('abort', close, { once: true })
    } catch (error) {
      if (!(error instanceof QueueFull)) throw error
      const message = `${OPEN.waitingMax} reads of tables, results and lines of this project wait already.`
      throw new ApiError('rate_limit_exceeded', message, {}, RETRY_S)
    }
  }
}

export class HeavyRead {
  /** The signal that aborts when the answer has been sent, or the caller has disconnected. */
  readonly closed: AbortSignal
  readonly #working: ProjectQueue
  readonly project_id: string
  #endTurn = (): void => {}

  constructor(working: ProjectQueue, project_id: string, closed: AbortSignal) {
    this.#working = working
    this.project_id = project_id
    this.closed = closed
  }

  /** Runs `act`, a piece of the read, when the project's turn comes. */
  async turn<T>(act: () => Promise<T>): Promise<T> {
    await this.#begin()
    try {
      return await act()
    } finally {
      this.#endTurn()
    }
  }

  /** Releases the turn during `act`, which works elsewhere; to be called within a turn. */
  async outside<T>(act: () => Promise<T>): Promise<T> {
    this.#endTurn()
    const result = await act()
    await this.#begin()
    return result
  }

  /** Streams `pieces` as the body of an answer, each read in its turn. */
  stream(pieces: AsyncIterable<Buffer>): Readable {
    return Readable.from(this.inTurns(pieces), { objectMode: false })
  }

  /** Yields `pieces`, each read in its turn. */
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
    // SQLite answers at once: without this, no other call would be served between two pieces.
    await new Promise((resolve) => setImmediate(resolve))
    this.#endTurn = await this.#working.enter(this.project_id, this.closed)
  }
}

const SLOT_RETRY_S = 1

/** The slots of one API process for each project, limited by a quota of its plan and by its share of the process. */
export class ProjectSlots {
  readonly #quota: QuotaName
  readonly #slots: SharedSlots

  /** Creates the slots of a quota. `max`: for all projects together. */
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
