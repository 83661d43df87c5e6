// Stops an API process without losing a call. First /readyz answers 503 and each response closes its connection, while
// calls are still accepted, so a load balancer that polls /readyz uses other processes. Then the server accepts no more
// calls, finishes those in flight, and closes the connections of those that take too long. The first step is skipped
// where /readyz is not polled.
import type { Socket } from 'node:net'
import { type Clock, sleep, systemClock } from '../../domain/clock.ts'
import type { App } from '../route.ts'

interface GracefulShutdownOptions {
  clock: Clock
  /** How long calls are still accepted after /readyz answers 503. */
  delay_ms: number
  /** How long calls in flight may take after that. */
  drain_ms: number
}

/** /readyz counts as polled if it was called within this time. */
const LOOKED_WITHIN_MS = 60_000
/** How often connections are looked at while the server closes. */
const IDLE_LOOK_MS = 50

export class GracefulShutdown {
  readonly #options: GracefulShutdownOptions
  #looked_at = Number.NEGATIVE_INFINITY
  #going = false

  constructor(options: GracefulShutdownOptions) {
    this.#options = options
  }

  get isShuttingDown(): boolean {
    return this.#going
  }

  /** Call this before the server listens. */
  watch(app: App): void {
    app.addHook('onSend', async (_request, reply, payload) => {
      if (this.#going) reply.header('connection', 'close')
      return payload
    })
  }

  /** Records a call of /readyz. */
  looked(): void {
    this.#looked_at = this.#options.clock.now()
  }

  /** Resolves when the server is closed, with the number of connections that were closed before their call was done. */
  async go(app: App): Promise<number> {
    const { clock, delay_ms, drain_ms } = this.#options
    this.#going = true
    if (clock.now() - this.#looked_at < LOOKED_WITHIN_MS) await sleep(clock, delay_ms)
    let cut = 0
    const cancelCut = clock.after(drain_ms, () => {
      app.server.getConnections((_error, count) => {
        cut = count
        app.server.closeAllConnections()
      })
    })
    await app.close().finally(cancelCut)
    return cut
  }
}

/**
 * Lets connections without a call keep the server from closing no longer than a moment: those that were not told to close
 * with their last answer, and those that clients have opened in advance, which Node does not count as idle.
 */
export function closeIdleConnectionsAtEnd(app: App): void {
  const unused = new Set<Socket>()
  app.server.on('connection', (socket) => {
    unused.add(socket)
    socket.once('close', () => unused.delete(socket))
  })
  app.server.on('request', ({ socket }) => unused.delete(socket))
  app.addHook('preClose', async () => {
    if (!app.server.listening) return
    let cancel = (): void => {}
    app.server.once('close', () => cancel())
    const look = (): void => {
      app.server.closeIdleConnections()
      for (const socket of unused) if (socket.bytesRead === 0) socket.destroy()
      cancel = systemClock.after(IDLE_LOOK_MS, look)
    }
    look()
  })
}
