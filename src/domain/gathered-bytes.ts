// Gathers received bodies, of calls and of answers. The sender chooses the pieces of a body, and a piece of one byte
// takes some 400 bytes of memory and as much time as one of many kilobytes. So small pieces are copied into a growing
// buffer, and a body whose pieces stay tiny is rejected.
import type { Readable } from 'node:stream'
import { freeBuffer } from './free-buffer.ts'

const CAPACITY_MIN = 1024
/** The size up to which a buffer gets its announced capacity at once; beyond it, capacity grows with the content. */
const CAPACITY_AT_ONCE_MAX = 256 * 1024
const NOTHING = Buffer.alloc(0)

/** Gathers pieces in one buffer, so that many small pieces cost no more than a few large ones. */
export class GrowingBytes {
  #buffer: Buffer = NOTHING
  #length = 0

  get length(): number {
    return this.#length
  }

  /** Bytes of memory that the buffer takes. */
  get capacity(): number {
    return this.#buffer.length
  }

  /** The gathered bytes, valid until more are added. */
  get view(): Buffer {
    return this.#buffer.subarray(0, this.#length)
  }

  /** Adds `bytes[start, end)`; `lengthMax` is an upper bound of the total length. */
  add(bytes: Uint8Array, start = 0, end = bytes.length, lengthMax = Number.POSITIVE_INFINITY): void {
    const needed = this.#length + end - start
    if (needed > this.#buffer.length) {
      const capacity = Math.max(needed, Math.min(lengthMax, this.#roomFor(lengthMax)))
      const grown = Buffer.allocUnsafeSlow(capacity)
      this.#buffer.copy(grown, 0, 0, this.#length)
      freeBuffer(this.#buffer)
      this.#buffer = grown
    }
    this.#buffer.set(start === 0 && end === bytes.length ? bytes : bytes.subarray(start, end), this.#length)
    this.#length = needed
  }

  #roomFor(lengthMax: number): number {
    if (lengthMax <= CAPACITY_AT_ONCE_MAX) return lengthMax
    return Math.max(CAPACITY_MIN, 2 * this.#buffer.length)
  }

  /** Returns the gathered bytes, with little spare capacity, and starts empty again. */
  take(): Buffer {
    const buffer = this.#buffer
    const { view } = this
    this.clear()
    if (buffer.length - view.length <= view.length >> 3) return view
    const body = Buffer.from(view)
    freeBuffer(buffer)
    return body
  }

  clear(): void {
    this.#buffer = NOTHING
    this.#length = 0
  }
}

/** The size up to which a piece is copied; a larger piece is kept as it is. */
export const SMALL_BYTES_MAX = 4 * 1024

/** The unread pieces of a stream: small ones gathered, large ones as received. */
class HeldPieces {
  readonly #pieces: Buffer[] = []
  readonly #tail = new GrowingBytes()
  #bytes = 0

  get bytes(): number {
    return this.#bytes
  }

  add(piece: Buffer): void {
    this.#bytes += piece.length
    if (piece.length <= SMALL_BYTES_MAX) this.#tail.add(piece)
    else {
      if (this.#tail.length > 0) this.#pieces.push(this.#tail.take())
      this.#pieces.push(piece)
    }
  }

  take(): Buffer {
    const first = this.#pieces.shift() ?? this.#tail.take()
    this.#bytes -= first.length
    return first
  }
}

/** The number of pieces that are judged together, and the bytes that they must have. */
const PIECES = 1_000
const PIECE_BYTES_MIN = 32

export const TINY_PIECES = `in pieces of less than ${PIECE_BYTES_MIN} bytes`

/** Thrown when the pieces of a body are so small that reading them takes too much time. */
export class TinyPieces extends Error {}

/** Judges the pieces of one body by their size. */
export class PieceSizes {
  #pieces = 0
  #bytes = 0

  /** Counts a piece; false if the last `PIECES` pieces were tiny. */
  allow(bytes: number): boolean {
    this.#bytes += bytes
    if (++this.#pieces < PIECES) return true
    const isEnough = this.#bytes >= PIECES * PIECE_BYTES_MIN
    this.#pieces = 0
    this.#bytes = 0
    return isEnough
  }
}

/** Bytes that are kept for a busy reader. */
const AHEAD_BYTES = 256 * 1024

/**
 * Reads `body` as it arrives, up to `aheadBytes` ahead of the reader, and destroys it when the reader stops. Throws the
 * error of `body`, after all bytes before it, and TinyPieces.
 */
export async function* gathered(body: Readable, aheadBytes = AHEAD_BYTES): AsyncGenerator<Buffer, void> {
  const held = new HeldPieces()
  const sizes = new PieceSizes()
  let wake = (): void => {}
  const over = Promise.withResolvers<void>()
  let isOver = false
  const end = (error?: unknown): void => {
    isOver = true
    if (error === undefined) over.resolve()
    else over.reject(error)
    wake()
  }
  // The promise is awaited after the last piece, or never if the reader stops.
  over.promise.catch(() => {})
  body.on('data', (piece: Buffer) => {
    if (!sizes.allow(piece.length)) body.destroy(new TinyPieces(`the body comes ${TINY_PIECES}`))
    held.add(piece)
    if (held.bytes >= aheadBytes) body.pause()
    wake()
  })
  body.once('end', () => end())
  body.on('error', end)
  const broke = (): void => end(body.errored ?? new Error('the body broke off'))
  body.once('close', broke)
  if (body.readableEnded) end()
  else if (body.destroyed) broke()
  try {
    for (;;) {
      if (held.bytes > 0) yield held.take()
      else if (isOver) return await over.promise
      else {
        const more = Promise.withResolvers<void>()
        wake = more.resolve
        body.resume()
        await more.promise
      }
    }
  } finally {
    body.destroy()
  }
}

/** The bytes of `body`, or its first `bytesMax`; the rest is destroyed. Throws as `gathered`. */
export async function readWhole(
  body: Readable,
  bytesMax: number,
): Promise<{ bytes: Buffer; isWhole: boolean }> {
  const whole = new GrowingBytes()
  for await (const piece of gathered(body)) {
    const room = bytesMax - whole.length
    whole.add(piece, 0, Math.min(room, piece.length), bytesMax)
    if (piece.length > room) return { bytes: whole.take(), isWhole: false }
  }
  return { bytes: whole.take(), isWhole: true }
}
