// A response may be sent before the whole request has arrived, for example to a rejected upload. A client that is
// still sending would get a connection reset instead of the response, so the rest is read and discarded, for a while.
import type { IncomingMessage } from 'node:http'
import type { Clock } from '../../domain/clock.ts'

const DRAIN_MS_MAX = 10_000

/** Call this after the response was sent. */
export function drain(raw: IncomingMessage, clock: Clock): void {
  if (raw.complete || raw.destroyed) return
  const { socket } = raw
  const leave = (): void => {
    cancel()
    socket.off('close', leave)
  }
  const cancel = clock.after(DRAIN_MS_MAX, () => raw.destroy())
  raw.once('end', leave)
  raw.once('close', leave)
  // The request emits no event any more when its connection ends.
  socket.once('close', leave)
  raw.on('error', () => {})
  // The former reader has stopped and would exert backpressure.
  raw.unpipe()
  raw.resume()
}
