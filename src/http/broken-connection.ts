// What reaches us is sometimes no HTTP at all, or stops half-way: Node then hands over a bare socket. The
// answer is the same envelope, written by hand, and the connection ends.
import { STATUS_CODES } from 'node:http'
import type { Socket } from 'node:net'
import { Refusal } from '../domain/errors.ts'
import { answerHeaders } from './answer-headers.ts'
import { refusalHeaders } from './refusals.ts'

/** What Node's parser complains about (`clientError`), as a refusal; null where nobody is left to be told. */
export function refusalOfBrokenHttp(error: Error & { code?: string }): Refusal | null {
  switch (error.code) {
    case 'ECONNRESET':
    case 'EPIPE':
      return null
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return new Refusal('request_timeout')
    case 'HPE_HEADER_OVERFLOW':
      return new Refusal('invalid_request', 'The request headers are too large.')
    default:
      return new Refusal('invalid_request', 'The request is not valid HTTP.')
  }
}

export function refuseOnSocket(socket: Socket, refusal: Refusal, request_id: string): void {
  if (!socket.writable) {
    socket.destroy()
    return
  }
  const body = JSON.stringify({ error: refusal.toWire() })
  const headers = {
    ...answerHeaders(request_id),
    ...refusalHeaders(refusal),
    'content-type': 'application/json; charset=utf-8',
    'content-length': String(Buffer.byteLength(body)),
    connection: 'close',
  }
  const head = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`)
  socket.write(`HTTP/1.1 ${refusal.status} ${STATUS_CODES[refusal.status]}\r\n${head.join('')}\r\n${body}`)
  socket.destroySoon()
}
