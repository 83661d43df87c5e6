// Long calls free what they have taken when they close, stop when their caller disconnects, and may wait for an event.
import type { ServerResponse } from 'node:http'
import type { FastifyRequest } from 'fastify'
import { type Clock, sleep } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { SharedSlots } from '../../domain/project-queue.ts'

/** Runs `act` once the answer has been sent or its caller has left; a caller may have left before. */
export function whenClosed(answer: ServerResponse, act: () => void): void {
  if (answer.destroyed) act()
  else answer.once('close', act)
}

/** The signal aborts when the connection ends; then this throws invalid_request. */
export async function whileConnected<T>(
  request: FastifyRequest,
  act: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const value = await untilDisconnected(request, act)
  if (request.raw.socket.destroyed)
    throw new ApiError('invalid_request', 'The connection ended before the request was complete.')
  return value
}

/** The signal aborts when the connection ends. */
export async function untilDisconnected<T>(
  { raw: { socket } }: FastifyRequest,
  act: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const left = new AbortController()
  const leave = (): void => left.abort()
  if (socket.destroyed) leave()
  else socket.once('close', leave)
  try {
    return await act(left.signal)
  } finally {
    socket.off('close', leave)
  }
}

// A call may wait for the validation of a file, or for the end of a batch. Whatever process brings it about, the database
// has it; so calls poll, and keep neither a transaction nor a connection in between. The number of waiting calls is
// limited; a call above the limit does not wait.

const WAITING_MAX = 512
const WAITING_PER_PROJECT_MAX = 64
/** Between two polls. What takes long may be noticed later: by a quarter of the time that it has taken. */
const POLL_MS_MIN = 5
const POLL_MS_MAX = 1_000
const POLL_SHARE = 1 / 4

interface Wait {
  project_id: string
  ms: number
  /** Aborts when the caller has disconnected. */
  signal: AbortSignal
}

export class WaitingCalls {
  readonly #clock: Clock
  readonly #stopped = new AbortController()
  readonly #slots = new SharedSlots(WAITING_MAX)

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Resolves when `isOver`, or when the wait has reached its limit. Rejects as `isOver` does. */
  async wait({ project_id, ms, signal }: Wait, isOver: () => Promise<boolean>): Promise<void> {
    const mayWait = this.#slots.used(project_id) < WAITING_PER_PROJECT_MAX
    const giveBack = mayWait ? this.#slots.take(project_id) : null
    if (!giveBack) return
    try {
      await this.#poll(ms, AbortSignal.any([signal, this.#stopped.signal]), isOver)
    } finally {
      giveBack()
    }
  }

  async #poll(ms: number, signal: AbortSignal, isOver: () => Promise<boolean>): Promise<void> {
    const begin = this.#clock.now()
    while (!signal.aborted && !(await isOver())) {
      const waitedMs = this.#clock.now() - begin
      if (waitedMs >= ms) return
      const pauseMs = Math.min(Math.max(waitedMs * POLL_SHARE, POLL_MS_MIN), POLL_MS_MAX, ms - waitedMs)
      await sleep(this.#clock, pauseMs, signal)
    }
  }

  stop(): void {
    this.#stopped.abort()
  }
}
