// A call whose body takes as much memory as its bytes, however small the pieces in which it comes, and whose connection
// outlives it. Node keeps each chunk of HTTP in a buffer of its own while the reader is busy, and closes the connection
// when a reader leaves before the end, so that the sender of a wrong body gets a reset in place of the error.
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { ApiError } from '../../domain/errors.ts'
import { GrowingBytes, PieceSizes, SMALL_BYTES_MAX, TINY_PIECES } from '../../domain/gathered-bytes.ts'
import { http } from '../../domain/http-module.ts'

export class ReceivedRequest extends http.IncomingMessage {
  readonly #connection: Socket
  readonly #sizes = new PieceSizes()
  /** Pieces that the reader has not taken yet, in one. */
  readonly #tail = new GrowingBytes()
  #isTiny = false

  constructor(socket: Socket) {
    super(socket)
    this.#connection = socket
  }

  /** Called by the parser of HTTP. What a reader has left unread is dropped. */
  override push(piece: Buffer | null): boolean {
    if (piece === null) {
      this.#passTail()
      this.emit('received')
      return super.push(null)
    }
    if (this.destroyed) return true
    if (!this.#sizes.allow(piece.length)) {
      this.#isTiny = true
      skipBodies(this.socket)
      this.destroy(
        new ApiError('invalid_request', `The request body comes ${TINY_PIECES}. Send larger ones.`),
      )
      return true
    }
    if (this.#tail.length === 0) {
      if (piece.length > SMALL_BYTES_MAX) return super.push(piece)
      // Pieces that come together are passed on together. A reader that is behind asks for them by `read`.
      if (this.readableLength === 0) process.nextTick(() => this.#passTail())
    }
    this.#tail.add(piece)
    return this.readableLength + this.#tail.length < this.readableHighWaterMark
  }

  override read(bytes?: number): unknown {
    this.#passTail()
    return super.read(bytes)
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#tail.clear()
    // A pipeline takes the connection from a request that it destroys.
    this.socket = this.#connection
    if (this.socket.destroyed) {
      super._destroy(error, done)
      return
    }
    // The rest is read and dropped. Of tiny pieces even that takes too long: they stay with their sender.
    if (this.#isTiny) this.socket.pause()
    else super._read(0)
    // Without a reader there is nobody to tell; a later one finds it in `errored`.
    done(this.listenerCount('error') > 0 ? error : null)
  }

  #passTail(): void {
    if (this.#tail.length > 0 && !this.destroyed) super.push(this.#tail.take())
  }
}

/**
 * Lets Node's parser pass over the rest of the bytes that it has read: to be told of 10,000 tiny pieces takes it ten times
 * as long. Where Node has no such parser, the pieces are dropped one by one.
 */
function skipBodies(socket: IncomingMessage['socket']): void {
  const parser: unknown = Reflect.get(socket, 'parser')
  if (typeof parser !== 'object' || parser === null) return
  for (const [key, value] of Object.entries(parser))
    if (typeof value === 'function' && value.name === 'parserOnBody') {
      Reflect.set(parser, key, null)
      // It has passed over them by then, and later serves other connections.
      process.nextTick(() => Reflect.set(parser, key, value))
    }
}

/** Calls `act` when the whole body of `raw` has come, whoever reads it, or its connection has ended. */
export function onceReceived(raw: IncomingMessage, act: () => void): void {
  const { socket } = raw
  const over = (): void => {
    raw.off('received', over)
    socket.off('close', over)
    act()
  }
  raw.once('received', over)
  socket.once('close', over)
}
