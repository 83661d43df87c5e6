// An answer may leave before its request has arrived whole: a refused upload, say. A client that is still
// sending would meet a reset and never read the answer, so what is left is read and thrown away, for a while.
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
