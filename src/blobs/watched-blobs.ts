// A blob store that tells whether it fails: by how the last calls ended, and by calls that get no further, since a client
// of a bucket retries for minutes before it gives up. Writes are told apart from all else, because a full disk can be
// read.
import type { Clock } from '../domain/clock.ts'
import { BlobStoreFailed, type Blobs, type ByteRange, type Source, type StoredBlob } from './blobs.ts'

/** The time in ms without progress after which a call has failed, unless another one has succeeded meanwhile. */
const STUCK_MS = 1_500
/** The time in ms for which a failure counts: failed calls are retried sooner. */
const REMEMBERED_MS = 60_000

export class WatchedBlobs implements Blobs {
  readonly #blobs: Blobs
  readonly #writes: Calls
  readonly #others: Calls

  constructor(blobs: Blobs, clock: Pick<Clock, 'steady'>) {
    this.#blobs = blobs
    this.#writes = new Calls(clock)
    this.#others = new Calls(clock)
  }

  get isFailing(): boolean {
    return this.#writes.areFailing || this.#others.areFailing
  }

  put(key: string, source: Source): Promise<number> {
    const call = this.#writes.begin()
    return this.#writes.end(
      call,
      this.#blobs.put(key, Symbol.iterator in source ? source : untimed(source, call)),
    )
  }

  async *read(key: string, range?: ByteRange): AsyncIterable<Buffer> {
    yield* this.#steps(this.#blobs.read(key, range))
  }

  async *list(prefix: string): AsyncIterable<StoredBlob> {
    yield* this.#steps(this.#blobs.list(prefix))
  }

  size(key: string): Promise<number> {
    return this.#others.end(this.#others.begin(), this.#blobs.size(key))
  }

  delete(key: string): Promise<void> {
    return this.#others.end(this.#others.begin(), this.#blobs.delete(key))
  }

  async *#steps<T>(all: AsyncIterable<T>): AsyncGenerator<T> {
    const steps = all[Symbol.asyncIterator]()
    try {
      for (;;) {
        const step = await this.#others.end(this.#others.begin(), steps.next())
        if (step.done) return
        yield step.value
      }
    } finally {
      await steps.return?.()
    }
  }
}

interface Call {
  /** The time since which the call makes no progress, by the steady clock; null while it waits for its source. */
  since: number | null
  restart(): void
}

class Calls {
  readonly #clock: Pick<Clock, 'steady'>
  readonly #open = new Set<Call>()
  #succeededAt = Number.NEGATIVE_INFINITY
  #failedAt: number | null = null

  constructor(clock: Pick<Clock, 'steady'>) {
    this.#clock = clock
  }

  get areFailing(): boolean {
    const now = this.#clock.steady()
    if (this.#failedAt !== null && now - this.#failedAt < REMEMBERED_MS) return true
    for (const { since } of this.#open)
      if (since !== null && now - Math.max(since, this.#succeededAt) >= STUCK_MS) return true
    return false
  }

  begin(): Call {
    const call: Call = {
      since: null,
      restart: () => {
        call.since = this.#clock.steady()
      },
    }
    call.restart()
    this.#open.add(call)
    return call
  }

  /** Ends a call. Errors of the caller, and missing or damaged blobs, prove that the store answers. */
  async end<T>(call: Call, result: Promise<T>): Promise<T> {
    try {
      const value = await result
      this.#succeeded()
      return value
    } catch (error) {
      if (error instanceof BlobStoreFailed) this.#failedAt = this.#clock.steady()
      else this.#succeeded()
      throw error
    } finally {
      this.#open.delete(call)
    }
  }

  #succeeded(): void {
    this.#succeededAt = this.#clock.steady()
    this.#failedAt = null
  }
}

async function* untimed(source: AsyncIterable<Uint8Array>, call: Call): AsyncGenerator<Uint8Array> {
  call.since = null
  for await (const piece of source) {
    call.restart()
    yield piece
    call.since = null
  }
  call.restart()
}
