// Limits the memory of answers in a worker: responses being received, over all upstreams, results that are not written
// yet, and whole answers that other parts of the worker have. Above the limit connections are paused and no line is sent.
// One response is always read on, so that partly received responses cannot block each other.

import { type Clock, sleep } from '../domain/clock.ts'

/** An answer that is being received. */
export interface Receiving {
  pause(): void
  resume(): void
}

/** Whole answers that are no results: those that are examined, which ends by itself. */
const EXAMINED = 'examined'
/** And those that stay, with the share that they may take at most: a line that is sent may be what frees them. */
const STAYING_SHARE = {
  /** The share of lines that are asked again. */
  kept: 0.25,
  /** For identical lines. */
  remembered: 0.125,
}

export type AnswerHolder = typeof EXAMINED | keyof typeof STAYING_SHARE

const ROOM_MS = 20
/** Below this, nothing useful can be received. */
const BYTES_MIN = 1024 * 1024
/** Finished lines that wait for a journal do not wait for the clock beyond this share, or this much. */
const UNWRITTEN_SHARE = 0.25
const UNWRITTEN_BYTES_MAX = 16 * 1024 * 1024
/** Results that journals have are kept in memory up to this share. */
const KEPT_SHARE = 0.4
/** More than what is kept for long, so that there comes a time to read on. */
const FIRST_SHARE = 0.5

export class ResponseMemory {
  readonly #bytes_max: number
  /** Bytes of results beyond which not even the first is read on: it may be as large as all of them. */
  readonly #first_bytes_max: number
  /** Results that no journal has, in bytes: beyond it they are written at once. */
  readonly unwrittenBytesMax: number
  /** Results in memory, in bytes: beyond it, those that journals have are read back from there. */
  readonly keptBytesMax: number
  readonly #received = new Map<Receiving, number>()
  readonly #paused = new Set<Receiving>()
  #received_bytes = 0
  #result_bytes = 0
  readonly #held: Record<AnswerHolder, number> = { examined: 0, kept: 0, remembered: 0 }
  /** The one that is read on. */
  #first: Receiving | null = null
  /** Called when lines may be sent again. */
  onRoom: () => void = () => {}

  constructor(bytes_max: number) {
    this.#bytes_max = Math.max(BYTES_MIN, bytes_max)
    this.#first_bytes_max = this.#bytes_max * FIRST_SHARE
    this.unwrittenBytesMax = Math.min(UNWRITTEN_BYTES_MAX, this.#bytes_max * UNWRITTEN_SHARE)
    this.keptBytesMax = bytes_max * KEPT_SHARE
  }

  /** Whether more lines may be sent. */
  get hasRoom(): boolean {
    const { examined, kept, remembered } = this.#held
    return this.#result_bytes + this.#received_bytes + examined + kept + remembered < this.#bytes_max
  }

  /** Whether there may be another first one: what is examined becomes a result, or is asked again. */
  get #mayReadFirst(): boolean {
    return this.#result_bytes + this.#held.examined < this.#first_bytes_max
  }

  /** Whether so many bytes more may be held; if so, they count until `free`. */
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

  /** Resolves when there is room, or the signal aborts. */
  async untilRoom(clock: Clock, signal: AbortSignal): Promise<void> {
    while (!this.hasRoom && !signal.aborted) await sleep(clock, ROOM_MS, signal)
  }

  /** How much of an answer has been received; it may be paused by this. */
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

  /** It is whole, or has broken off. */
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

  /** How many bytes of results are in memory now. */
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
