// Stops an API process without losing a call. First /readyz answers 503 and each response closes its connection, while
// calls are still accepted, so a load balancer that polls /readyz uses other processes. Then the server accepts no more
// calls, finishes those in flight, and closes the connections of those that take too long. The first step is skipped
// where /readyz is not polled.
import { type Clock, sleep } from '../../domain/clock.ts'
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
/** How often idle connections are closed that were not told to close with their last response. */
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
    const over = new AbortController()
    const closed = app.close().finally(() => {
      cancelCut()
      over.abort()
    })
    while (!over.signal.aborted) {
      app.server.closeIdleConnections()
      await sleep(clock, IDLE_LOOK_MS, over.signal)
    }
    await closed
    return cut
  }
}
