// Connections to one server, opened as they are needed and used again. Calls beyond `connections_max` wait in line.
//
// A broken server may send an answer that nobody asked for, and on a connection that is in use again nothing tells
// it from the next. So a connection serves one project only, and it rests before it is used again as long as others
// can take its place: what comes meanwhile ends it. A few connections more than are busy are enough for that; where
// another project needs one, the connection that has been idle longest makes room.
//
// What is sent in one turn of the event loop goes out together at its end. To a server on the same machine or
// beside it, each separate request costs a wake-up of an idle process, which is dearer than all the rest
// of sending it; several requests at once cost one.
import { Connection, type ConnectionHooks, type Target } from './connection.ts'
import type { Exchange } from './exchange.ts'

/** Below the 5 s after which uvicorn, Node and cpp-httplib drop an idle connection without a word. */
const IDLE_MS_MAX = 4_000
/** A server that says when it closes idle connections is left that much earlier. */
const IDLE_MARGIN_MS = 1_000
const SWEEP_MS = 1_000
/** Many times what lies between the two answers of a server that sends an answer twice. */
const REST_MS = 20

export class HttpPool implements ConnectionHooks {
  readonly #target: Target
  readonly #connections_max: number
  readonly #open = new Set<Connection>()
  /** The longest idle first; beside it the same by project. */
  readonly #idle = new Set<Connection>()
  readonly #idleOf = new Map<string, Connection[]>()
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
    if (this.#closed) {
      exchange.abort()
      return
    }
    const busy = this.#open.size - this.#idle.size
    const spare = 1 + (busy >> 3)
    const hasRoom = this.#open.size < Math.min(this.#connections_max, busy + 1 + spare)
    const own = this.#idleOf.get(exchange.project_id) ?? []
    // Not the one that has rested longest: so those that are no longer needed grow old.
    const idle = own[Math.max(0, own.length - 1 - spare)]
    if (idle && (!hasRoom || performance.now() - idle.idleSince >= REST_MS)) {
      this.#unlist(idle)
      this.#send(idle, exchange)
      return
    }
    const [longestIdle] = this.#idle
    if (!hasRoom && longestIdle) longestIdle.close()
    if (this.#open.size < this.#connections_max) this.#connect(exchange)
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
    if (next?.project_id === connection.project_id) {
      this.#send(connection, next)
      return
    }
    if (next) {
      // It goes out on the connection that takes the place of this one.
      this.#queue[--this.#head] = next
      connection.close()
      return
    }
    connection.idleSince = performance.now()
    this.#idle.add(connection)
    const own = this.#idleOf.get(connection.project_id)
    if (own) own.push(connection)
    else this.#idleOf.set(connection.project_id, [connection])
    this.#sweeper ??= setInterval(() => this.#sweep(), SWEEP_MS).unref()
  }

  onEnded(connection: Connection): void {
    this.#open.delete(connection)
    this.#unlist(connection)
    const next = this.#next()
    if (next) this.#connect(next)
  }

  onUnsent(exchange: Exchange): void {
    this.dispatch(exchange)
  }

  #unlist(connection: Connection): void {
    if (!this.#idle.delete(connection)) return
    const own = this.#idleOf.get(connection.project_id) ?? []
    own.splice(own.indexOf(connection), 1)
    if (own.length === 0) this.#idleOf.delete(connection.project_id)
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
    for (const connection of [...this.#idle])
      if (now - connection.idleSince > idleMsOf(connection)) connection.close()
    if (this.#idle.size > 0 || this.#sweeper === null) return
    clearInterval(this.#sweeper)
    this.#sweeper = null
  }
}

function idleMsOf({ keepAliveS }: Connection): number {
  if (keepAliveS === null) return IDLE_MS_MAX
  return Math.min(IDLE_MS_MAX, Math.max(0, keepAliveS * 1000 - IDLE_MARGIN_MS))
}
