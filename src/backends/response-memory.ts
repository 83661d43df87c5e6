// Limits the memory of answers in a worker: responses being received, over all upstreams, results that are not written
// yet, and whole answers that other parts of the worker have. Above the limit connections are paused and no line is sent.
// One response is always read on, so that partly received responses cannot block each other.

import { type Clock, sleep } from '../domain/clock.ts'

/** An answer of which bytes are being received. */
export interface Receiving {
  pause(): void
  resume(): void
}

/** The holder of answers that are being examined, which takes a short time. */
const EXAMINED = 'examined'
/** Holders of answers that stay in memory until lines are sent, with their largest shares. */
const STAYING_SHARE = {
  /** The share of answers whose lines are asked again. */
  kept: 0.25,
  /** The share of answers for identical lines. */
  remembered: 0.125,
}

export type AnswerHolder = typeof EXAMINED | keyof typeof STAYING_SHARE

const ROOM_MS = 20
/** The smallest limit of answers' memory that is useful, in bytes. */
const BYTES_MIN = 1024 * 1024
/** The share, and the bytes, of unwritten results above which they are written to a journal at once. */
const UNWRITTEN_SHARE = 0.25
const UNWRITTEN_BYTES_MAX = 16 * 1024 * 1024
/** The share up to which results that a journal has are also kept in memory. */
const KEPT_SHARE = 0.4
/** The share above which no response is read on: above KEPT_SHARE, so that reading resumes at some time. */
const FIRST_SHARE = 0.5

export class ResponseMemory {
  readonly #bytes_max: number
  /** Bytes of results above which not even the first response is read on: it may be as large as all of them. */
  readonly #first_bytes_max: number
  /** Bytes of results that no journal has, above which they are written at once. */
  readonly unwrittenBytesMax: number
  /** Bytes of results in memory, above which results that a journal has are read back from it. */
  readonly keptBytesMax: number
  readonly #received = new Map<Receiving, number>()
  readonly #paused = new Set<Receiving>()
  #received_bytes = 0
  #result_bytes = 0
  readonly #held: Record<AnswerHolder, number> = { examined: 0, kept: 0, remembered: 0 }
  /** The response that is read on above the limit. */
  #first: Receiving | null = null
  /** Called when answers have memory again, so that lines may be sent. */
  onRoom: () => void = () => {}

  constructor(bytes_max: number) {
    this.#bytes_max = Math.max(BYTES_MIN, bytes_max)
    this.#first_bytes_max = this.#bytes_max * FIRST_SHARE
    this.unwrittenBytesMax = Math.min(UNWRITTEN_BYTES_MAX, this.#bytes_max * UNWRITTEN_SHARE)
    this.keptBytesMax = bytes_max * KEPT_SHARE
  }

  /** Whether answers have enough memory for more lines to be sent. */
  get hasRoom(): boolean {
    const { examined, kept, remembered } = this.#held
    return this.#result_bytes + this.#received_bytes + examined + kept + remembered < this.#bytes_max
  }

  /** Whether a response may be read on above the limit: examined answers become results, or are asked again. */
  get #mayReadFirst(): boolean {
    return this.#result_bytes + this.#held.examined < this.#first_bytes_max
  }

  /** Reserves memory until `free`; false if the holder may have no more bytes. */
  hold(holder: AnswerHolder, bytes: number): boolean {
    const share = holder === EXAMINED ? Number.POSITIVE_INFINITY : STAYING_SHARE[holder]
    if (this.#held[holder] + bytes > share * this.#bytes_max) return false
    this.#held[holder] += bytes
    return true
  }

  free(holder: AnswerHolder, bytes: number): void {
    const had_room = this.hasRoom
    this.#held[holder] -= bytes
    this.#readOn(had_room)
  }

  /** Resolves when answers have memory again, or the signal aborts. */
  async untilRoom(clock: Clock, signal: AbortSignal): Promise<void> {
    while (!this.hasRoom && !signal.aborted) await sleep(clock, ROOM_MS, signal)
  }

  /** Counts the bytes of an answer that were received so far; may pause the answer. */
  received(answer: Receiving, bytes: number): void {
    this.#received_bytes += bytes - (this.#received.get(answer) ?? 0)
    this.#received.set(answer, bytes)
    if (this.hasRoom || this.#paused.has(answer)) return
    if (this.#mayReadFirst) {
      this.#first ??= answer
      if (this.#first === answer) return
    }
    this.#paused.add(answer)
    answer.pause()
  }

  /** Removes an answer that is complete or has failed. */
  ended(answer: Receiving): void {
    const bytes = this.#received.get(answer)
    if (bytes === undefined) return
    const had_room = this.hasRoom
    this.#received.delete(answer)
    this.#paused.delete(answer)
    this.#received_bytes -= bytes
    if (this.#first === answer) this.#first = null
    this.#readOn(had_room)
  }

  set result_bytes(bytes: number) {
    const had_room = this.hasRoom
    const dropped = bytes < this.#result_bytes
    this.#result_bytes = bytes
    if (dropped) this.#readOn(had_room)
  }

  #readOn(had_room: boolean): void {
    if (this.hasRoom) {
      for (const answer of this.#paused) {
        this.#paused.delete(answer)
        answer.resume()
      }
      if (!had_room) this.onRoom()
      return
    }
    if (this.#first && !this.#paused.has(this.#first)) return
    if (!this.#mayReadFirst) return
    this.#first ??= this.#paused.values().next().value ?? null
    if (!this.#first) return
    this.#paused.delete(this.#first)
    this.#first.resume()
  }
}
