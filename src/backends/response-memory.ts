// Limits the memory of responses over all upstreams of a worker: responses being received, and results that are not
// written yet. Above the limit connections are paused and no line is sent. One response is always read on, so that
// partly received responses cannot block each other.

/** An answer that is being received. */
export interface Receiving {
  pause(): void
  resume(): void
}

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
    return this.#result_bytes + this.#received_bytes < this.#bytes_max
  }

  /** How much of an answer has been received; it may be paused by this. */
  received(answer: Receiving, bytes: number): void {
    this.#received_bytes += bytes - (this.#received.get(answer) ?? 0)
    this.#received.set(answer, bytes)
    if (this.hasRoom || this.#paused.has(answer)) return
    if (this.#result_bytes < this.#first_bytes_max) {
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
    if (this.#result_bytes >= this.#first_bytes_max) return
    this.#first ??= this.#paused.values().next().value ?? null
    if (!this.#first) return
    this.#paused.delete(this.#first)
    this.#first.resume()
  }
}
