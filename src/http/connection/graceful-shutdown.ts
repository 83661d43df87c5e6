// Stops an API process without losing a call. First /readyz answers 503 and each response closes its connection, while
// calls are still accepted, so a load balancer that polls /readyz uses other processes. Then the server accepts no more
// calls, finishes those in flight, and closes the connections of those that take too long. The first step is skipped
// where /readyz is not polled.
import type { Socket } from 'node:net'
import { type Clock, every, sleep, systemClock } from '../../domain/clock.ts'
import type { App } from '../route.ts'

interface GracefulShutdownOptions {
  clock: Clock
  /** The time in ms for which calls are still accepted after /readyz answers 503. */
  delay_ms: number
  /** The time in ms for calls in flight, after calls are no longer accepted. */
  drain_ms: number
}

/** The time in ms within which a call of /readyz counts as polling. */
const POLLED_WITHIN_MS = 60_000
/** The interval in ms at which connections are checked while the server closes. */
const IDLE_LOOK_MS = 50

export class GracefulShutdown {
  readonly #options: GracefulShutdownOptions
  #polled_at = Number.NEGATIVE_INFINITY
  #stopping = false

  constructor(options: GracefulShutdownOptions) {
    this.#options = options
  }

  get isShuttingDown(): boolean {
    return this.#stopping
  }

  /** Adds the hooks of the graceful shutdown; to be called before the server listens. */
  watch(app: App): void {
    app.addHook('onSend', async (_request, reply, payload) => {
      if (this.#stopping) reply.header('connection', 'close')
      return payload
    })
  }

  /** Records that a load balancer has polled /readyz. */
  polled(): void {
    this.#polled_at = this.#options.clock.now()
  }

  /** Shuts down. Resolves when the server is closed, with the number of connections closed during a call. */
  async shutDown(app: App): Promise<number> {
    const { clock, delay_ms, drain_ms } = this.#options
    this.#stopping = true
    if (clock.now() - this.#polled_at < POLLED_WITHIN_MS) await sleep(clock, delay_ms)
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
 * Closes connections without a call soon after the server closes: those whose last answer did not announce it, and
 * those that clients have opened in advance, which Node does not count as idle.
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
    const look = (): void => {
      app.server.closeIdleConnections()
      for (const socket of unused) if (socket.bytesRead === 0) socket.destroy()
    }
    app.server.once('close', every(systemClock, IDLE_LOOK_MS, look))
    look()
  })
}
