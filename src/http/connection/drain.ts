// A response may be sent before the whole request has arrived, for example to a refused upload. A client that is
// still sending would get a connection reset instead of the response, so the rest is read and discarded, for a while.
import type { IncomingMessage } from 'node:http'
import type { Clock } from '../../domain/clock.ts'

const DRAIN_MS_MAX = 10_000

/** To be called when the answer has been sent. */
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
  // The request itself hears nothing of the end of its connection any more.
  socket.once('close', leave)
  raw.on('error', () => {})
  // Whoever was reading has stopped, and would hold the rest back.
  raw.unpipe()
  raw.resume()
}
