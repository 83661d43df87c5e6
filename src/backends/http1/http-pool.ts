// Connections to one server, opened as they are needed and used again, the last one first. Calls beyond
// `connections_max` wait in line.
//
// What is sent in one turn of the event loop goes out together at its end. To a server on the same machine or
// beside it, each request on its own costs a wake-up of a sleeping process, which is dearer than all the rest
// of sending it; a handful at once costs one.
import { Connection, type ConnectionHooks, type Target } from './connection.ts'
import type { Exchange } from './exchange.ts'

/** Below the 5 s after which uvicorn, Node and cpp-httplib drop an idle connection without a word. */
const IDLE_MS_MAX = 4_000
/** A server that says when it closes idle connections is left that much earlier. */
const IDLE_MARGIN_MS = 1_000
const SWEEP_MS = 1_000

export class HttpPool implements ConnectionHooks {
  readonly #target: Target
  readonly #connections_max: number
  readonly #open = new Set<Connection>()
  readonly #idle: Connection[] = []
  /** Connections whose requests go out at the end of this turn. */
  #outbox: Connection[] = []
  #queue: Exchange[] = []
  /** Where the queue begins: those before it are gone. */
  #head = 0
  #sweeper: NodeJS.Timeout | null = null
  #closed = false
  tlsSession: Buffer | undefined

  constructor(target: Target, connections_max: number) {
    this.#target = target
    this.#connections_max = Math.max(1, connections_max)
  }

  dispatch(exchange: Exchange): void {
    const idle = this.#idle.pop()
    if (this.#closed) exchange.abort()
    else if (idle) this.#send(idle, exchange)
    else if (this.#open.size < this.#connections_max) this.#connect(exchange)
    else this.#queue.push(exchange)
  }

  close(): void {
    this.#closed = true
    if (this.#sweeper) clearInterval(this.#sweeper)
    for (const exchange of this.#queue.splice(0).slice(this.#head)) exchange.abort()
    for (const connection of [...this.#open]) connection.close()
  }

  onFree(connection: Connection): void {
    const next = this.#next()
    if (next) {
      this.#send(connection, next)
      return
    }
    connection.idleSince = performance.now()
    this.#idle.push(connection)
    this.#sweeper ??= setInterval(() => this.#sweep(), SWEEP_MS).unref()
  }

  onEnded(connection: Connection): void {
    this.#open.delete(connection)
    const at = this.#idle.indexOf(connection)
    if (at !== -1) this.#idle.splice(at, 1)
    const next = this.#next()
    if (next) this.#connect(next)
  }

  onUnsent(exchange: Exchange): void {
    this.dispatch(exchange)
  }

  #send(connection: Connection, exchange: Exchange): void {
    connection.take(exchange)
    if (this.#outbox.push(connection) === 1) setImmediate(() => this.#flush())
  }

  #flush(): void {
    const outbox = this.#outbox
    this.#outbox = []
    for (const connection of outbox) connection.flush()
  }

  #connect(exchange: Exchange): void {
    this.#open.add(new Connection(this.#target, this, exchange))
  }

  #next(): Exchange | null {
    while (this.#head < this.#queue.length) {
      const exchange = this.#queue[this.#head++]!
      if (!exchange.settled) return exchange
    }
    this.#queue = []
    this.#head = 0
    return null
  }

  #sweep(): void {
    const now = performance.now()
    for (const connection of this.#idle.filter((one) => now - one.idleSince > idleMsOf(one)))
      connection.close()
    if (this.#idle.length > 0 || this.#sweeper === null) return
    clearInterval(this.#sweeper)
    this.#sweeper = null
  }
}

function idleMsOf({ keep_alive_s }: Connection): number {
  if (keep_alive_s === null) return IDLE_MS_MAX
  return Math.min(IDLE_MS_MAX, Math.max(0, keep_alive_s * 1000 - IDLE_MARGIN_MS))
}
