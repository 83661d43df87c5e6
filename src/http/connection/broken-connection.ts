// Answers input that is not valid or complete HTTP. Node hands over a bare socket, so the error envelope is written
// here and the connection closed.
import type { Socket } from 'node:net'
import { ApiError } from '../../domain/errors.ts'
import { http } from '../../domain/http-module.ts'
import { responseHeaders } from '../response/headers.ts'
import { errorHeaders } from '../response/to-api-error.ts'

/** An error of Node's HTTP parser (`clientError`) as an ApiError; null if the connection is closed. */
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
    ...responseHeaders(request_id),
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
