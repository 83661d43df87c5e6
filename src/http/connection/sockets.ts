// Answers input that is not valid or complete HTTP. Node hands over a bare socket, so the error envelope is written
// here and the connection closed.

import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { type Clock, every } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { http } from '../../domain/http-module.ts'
import { errorHeaders, responseHeaders } from '../response/send-error.ts'
import { onceReceived } from './received-request.ts'

/** Converts an error of Node's HTTP parser (`clientError`) to an ApiError; null if the connection is closed. */
export function errorOfBrokenHttp(error: Error & { code?: string }): ApiError | null {
  switch (error.code) {
    case 'ECONNRESET':
    case 'EPIPE':
      return null
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return new ApiError('request_timeout')
    case 'HPE_HEADER_OVERFLOW':
      return new ApiError('invalid_request', 'The request headers are too large.')
    default:
      return new ApiError('invalid_request', 'The request is not valid HTTP.')
  }
}

export function sendErrorOnSocket(socket: Socket, apiError: ApiError, request_id: string): void {
  if (!socket.writable) {
    socket.destroy()
    return
  }
  const body = JSON.stringify({ error: apiError.toWire() })
  const headers = {
    ...responseHeaders({ id: request_id, url: '' }),
    ...errorHeaders(apiError),
    'content-type': 'application/json; charset=utf-8',
    'content-length': String(Buffer.byteLength(body)),
    connection: 'close',
  }
  const head = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`)
  socket.write(
    `HTTP/1.1 ${apiError.status} ${http.STATUS_CODES[apiError.status]}\r\n${head.join('')}\r\n${body}`,
  )
  socket.destroySoon()
}

// A response may be sent before the whole request has arrived, for example to a rejected upload. A client that is
// still sending would get a connection reset instead of the response, so the rest is read and discarded, for a while.

const DRAIN_MS_MAX = 10_000

/** Discards the rest of a request; to be called after the response was sent. */
export function drain(raw: IncomingMessage, clock: Clock): void {
  const { socket } = raw
  if (raw.complete || socket.destroyed) return
  onceReceived(
    raw,
    clock.after(DRAIN_MS_MAX, () => socket.destroy()),
  )
  raw.on('error', () => {})
  // The former reader has stopped and would exert backpressure.
  raw.unpipe()
  raw.resume()
}

/**
 * The slowest pace of a request body. A body may be large, so there is no deadline for the whole, but each window of
 * time must bring a minimum of bytes.
 */
interface Pace {
  window_ms: number
  /** The least bytes per window, unless received bytes wait for the server. */
  bytes_min: number
}

/** Calls `onStall` once if the body of `raw` arrives too slowly. Ends with the body or its connection. */
export function watchSender(raw: IncomingMessage, clock: Clock, pace: Pace, onStall: () => void): void {
  let seen = raw.socket.bytesRead
  const look = (): boolean => {
    if (raw.complete || raw.destroyed) return false
    const brought = raw.socket.bytesRead - seen
    seen = raw.socket.bytesRead
    const isStalled = raw.readableLength === 0 && brought < pace.bytes_min
    if (isStalled) onStall()
    return !isStalled
  }
  onceReceived(raw, every(clock, pace.window_ms, look))
}
