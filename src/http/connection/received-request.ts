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
  /** The pieces that the reader has not received yet, in one buffer. */
  readonly #tail = new GrowingBytes()
  #isTiny = false

  constructor(socket: Socket) {
    super(socket)
    this.#connection = socket
  }

  /** Receives a piece from the parser of HTTP. Bytes that a reader has left unread are dropped. */
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
      // Pieces of one turn are passed on together. A slower reader requests them by `read`.
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
    // The rest is read and dropped, but tiny pieces, which take too long even then, stay with their sender.
    if (this.#isTiny) this.socket.pause()
    else super._read(0)
    // Without a reader there is no listener; a later reader finds the error in `errored`.
    done(this.listenerCount('error') > 0 ? error : null)
  }

  #passTail(): void {
    if (this.#tail.length > 0 && !this.destroyed) super.push(this.#tail.take())
  }
}

/**
 * Makes Node's parser skip the rest of the bytes that it has read: a callback for each of 10,000 tiny pieces takes ten
 * times as long. Where Node has no such parser, the pieces are dropped one by one.
 */
function skipBodies(socket: IncomingMessage['socket']): void {
  const parser: unknown = Reflect.get(socket, 'parser')
  if (typeof parser !== 'object' || parser === null) return
  for (const [key, value] of Object.entries(parser))
    if (typeof value === 'function' && value.name === 'parserOnBody') {
      Reflect.set(parser, key, null)
      // The parser has skipped the bytes by then, and later serves other connections.
      process.nextTick(() => Reflect.set(parser, key, value))
    }
}

/** Calls `act` when the body of `raw` is complete, whoever reads it, or its connection has ended. */
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
