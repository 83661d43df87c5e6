// Runs an operation that may take long for as long as the caller's connection lasts.
import type { FastifyRequest } from 'fastify'
import { ApiError } from '../../domain/errors.ts'

/** The signal aborts when the connection ends; then this throws invalid_request. */
export async function whileConnected<T>(
  { raw: { socket } }: FastifyRequest,
  act: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const left = new AbortController()
  const leave = (): void => left.abort()
  if (socket.destroyed) leave()
  else socket.once('close', leave)
  let value: T
  try {
    value = await act(left.signal)
  } finally {
    socket.off('close', leave)
  }
  if (socket.destroyed)
    throw new ApiError('invalid_request', 'The connection ended before the request was complete.')
  return value
}
