// Ends what a call has taken when the call is over.
import type { ServerResponse } from 'node:http'
import type { FastifyRequest } from 'fastify'
import { ApiError } from '../../domain/errors.ts'

/** Runs `act` once the answer has been sent or its caller has left; a caller may have left before. */
export function whenClosed(answer: ServerResponse, act: () => void): void {
  if (answer.destroyed) act()
  else answer.once('close', act)
}

// Runs an operation that may take long for as long as the caller's connection lasts.

/** The signal aborts when the connection ends; then this throws invalid_request. */
export async function whileConnected<T>(
  request: FastifyRequest,
  act: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const value = await untilDisconnected(request, act)
  if (request.raw.socket.destroyed)
    throw new ApiError('invalid_request', 'The connection ended before the request was complete.')
  return value
}

/** The signal aborts when the connection ends. */
export async function untilDisconnected<T>(
  { raw: { socket } }: FastifyRequest,
  act: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const left = new AbortController()
  const leave = (): void => left.abort()
  if (socket.destroyed) leave()
  else socket.once('close', leave)
  try {
    return await act(left.signal)
  } finally {
    socket.off('close', leave)
  }
}
