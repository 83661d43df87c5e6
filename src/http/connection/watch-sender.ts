// Ends request bodies that arrive too slowly. A body may be large, so there is no deadline for the whole, but each
// window of time must bring a minimum of bytes.
import type { IncomingMessage } from 'node:http'
import type { Clock } from '../../domain/clock.ts'

export interface Pace {
  window_ms: number
  /** The least bytes per window, unless the server itself has paused the stream. */
  bytes_min: number
}

/** Calls `onStall` once if the body of `raw` arrives too slowly. Ends when the body is complete or the connection closed. */
export function watchSender(raw: IncomingMessage, clock: Clock, pace: Pace, onStall: () => void): void {
  let seen = raw.socket.bytesRead
  let cancel = (): void => {}
  const look = (): void => {
    if (raw.complete || raw.destroyed) return
    const brought = raw.socket.bytesRead - seen
    seen = raw.socket.bytesRead
    if (raw.readableFlowing && brought < pace.bytes_min) onStall()
    else cancel = clock.after(pace.window_ms, look)
  }
  cancel = clock.after(pace.window_ms, look)
  const { socket } = raw
  const leave = (): void => {
    cancel()
    socket.off('close', leave)
  }
  raw.once('end', leave)
  raw.once('close', leave)
  // A request that was answered before it was complete emits no event when its connection ends.
  socket.once('close', leave)
}
