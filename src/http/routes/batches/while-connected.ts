// Runs an operation that may take long for as long as the caller's connection lasts.
import type { FastifyRequest } from 'fastify'
import { ApiError } from '../../../domain/errors.ts'

/** The signal aborts when the connection ends; then this throws invalid_request. */
export async function whileConnected(
  { raw: { socket } }: FastifyRequest,
  act: (signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const left = new AbortController()
  const leave = (): void => left.abort()
  socket.once('close', leave)
  try {
    await act(left.signal)
  } finally {
    socket.off('close', leave)
  }
  if (socket.destroyed)
    throw new ApiError('invalid_request', 'The connection ended before the request was complete.')
}
