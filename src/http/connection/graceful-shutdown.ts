// How an API goes without losing a call. First it says that it is going: /readyz answers 503, and each answer
// asks its connection to end, while calls are taken as before. A balancer that looks at /readyz sends what
// comes next elsewhere. Then nothing new is taken, what is under way is finished, and what takes too long is
// cut off. Where nobody looks at /readyz there is nobody to wait for.
import { type Clock, sleep } from '../../domain/clock.ts'
import type { App } from '../type-provider.ts'

export interface GracefulShutdownOptions {
  clock: Clock
  /** How long calls are still taken after /readyz has fallen. */
  delay_ms: number
  /** How long the calls that are under way then may take. */
  drain_ms: number
}

/** Whoever has not asked for so long is not looking. */
const LOOKED_WITHIN_MS = 60_000
/** How often connections whose last answer had begun before are looked for, to be closed. */
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

  /** To be called before the server listens. */
  watch(app: App): void {
    app.addHook('onSend', async (_request, reply, payload) => {
      if (this.#going) reply.header('connection', 'close')
      return payload
    })
  }

  /** Somebody asks whether calls may come here. */
  looked(): void {
    this.#looked_at = this.#options.clock.now()
  }

  /** Resolves when the server is closed; with the number of connections that had to be cut off. */
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
