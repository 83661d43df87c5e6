// A pool of connections to one server, opened on demand and reused. Calls beyond `connections_max` wait.
//
// A broken server may send an unsolicited answer, which on a reused connection looks like the answer to the next
// request. Therefore a connection serves one project only, unless the operator trusts the server (all calls then name
// the same project), and it stays idle for a while before it is reused if other connections are available: bytes that
// arrive meanwhile close it. When another project needs a connection, the pool closes the one that was idle longest,
// because servers with a small pool of threads let a new connection wait for the thread of an idle one.
//
// Requests of one iteration of the event loop are written together at its end. On the same machine, each separate
// request wakes an idle server process, which costs more than sending; several requests at once cost one wake-up.
import { connect, type NetConnectOpts } from 'node:net'
import { Connection, type ConnectionHooks, type Target } from './connection.ts'
import type { Exchange } from './exchange.ts'

/** The idle time of a connection, below the 5 s after which uvicorn, Node and cpp-httplib drop it without notice. */
const IDLE_MS_MAX = 4_000
/** The time before the server's own idle timeout at which an idle connection is closed. */
const IDLE_MARGIN_MS = 1_000
const SWEEP_MS = 1_000
/** The idle time before reuse: many times the gap between two answers of a server that sends an answer twice. */
const REST_MS = 20

export class HttpPool implements ConnectionHooks {
  readonly #target: Target
  readonly #connections_max: number
  readonly #open = new Set<Connection>()
  /** The idle connections, the longest idle first; `#idleOf` has the same by project. */
  readonly #idle = new Set<Connection>()
  readonly #idleOf = new Map<string, Connection[]>()
  /** The connections whose requests are sent at the end of this turn of the event loop. */
  #outbox: Connection[] = []
  /** The exchanges that wait for a connection, in order of arrival. */
  readonly #queue = new Set<Exchange>()
  #sweeper: NodeJS.Timeout | null = null
  #closed = false
  readonly #reachability: Reachability
  tlsSession: ConnectionHooks['tlsSession']

  constructor(
    target: Target,
    connections_max: number,
    reachability: Partial<ConstructorParameters<typeof Reachability>[0]> = {},
  ) {
    this.#target = target
    this.#connections_max = Math.max(1, connections_max)
    const { host, port } = target.proxy ?? { host: target.connectHost, port: target.port }
    const to = target.socket ? { path: target.socket } : { host, port }
    this.#reachability = new Reachability({
      tryConnection: () => tryTcp(to, target.connectTimeoutMs),
      isOwed: () => this.#open.size > this.#idle.size,
      onUnreachable: () => {
        for (const connection of [...this.#open]) if (!this.#idle.has(connection)) connection.giveUp()
      },
      ...reachability,
    })
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
    // Reuses recently idle connections first, so that surplus connections reach their idle timeout.
    const idle = own[Math.max(0, own.length - 1 - spare)]
    if (idle && (!hasRoom || performance.now() - idle.idleSince >= REST_MS)) {
      this.#unlist(idle)
      this.#send(idle, exchange)
      return
    }
    const [longestIdle] = this.#idle
    if (!hasRoom && longestIdle) longestIdle.close()
    if (this.#open.size < this.#connections_max) this.#connect(exchange)
    else this.#queue.add(exchange)
  }

  close(): void {
    this.#closed = true
    if (this.#sweeper) clearInterval(this.#sweeper)
    this.#reachability.stop()
    for (const exchange of this.#queue) exchange.abort()
    for (const connection of [...this.#open]) connection.close()
  }

  onFree(connection: Connection): void {
    const next = this.#next()
    if (next) {
      if (next.project_id === connection.project_id) this.#send(connection, this.#leave(next))
      // The exchange is sent on the connection that replaces this one.
      else connection.close()
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
    if (this.#open.size === 0) this.#reachability.stop()
    this.#unlist(connection)
    const next = this.#next()
    if (next) this.#connect(this.#leave(next))
  }

  onBytes(): void {
    this.#reachability.heard = true
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
    connection.accept(exchange)
    if (this.#outbox.push(connection) === 1) setImmediate(() => this.#flush())
  }

  #flush(): void {
    const outbox = this.#outbox
    this.#outbox = []
    for (const connection of outbox) connection.flush()
  }

  #connect(exchange: Exchange): void {
    this.#open.add(new Connection(this.#target, this, exchange))
    this.#reachability.start()
  }

  /** The first exchange of the queue that is not settled; it stays in the queue. */
  #next(): Exchange | null {
    for (const exchange of this.#queue) {
      if (!exchange.settled) return exchange
      this.#queue.delete(exchange)
    }
    return null
  }

  #leave(exchange: Exchange): Exchange {
    this.#queue.delete(exchange)
    return exchange
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

// Notices that a server has become unreachable while it owes answers. A packet filter that drops packets, or a machine
// that lost its power, closes no connection: the requests in flight would wait for their whole timeout, and no further
// request would be sent that could find out.
//
// A server that sends nothing for a while is sent connections that carry nothing. It is unreachable when several in a row
// were not established and it has still sent nothing. A refused connection proves that the server's machine runs.

const EVERY_MS = 15_000
/** The number of intervals without a byte before the first test connection. */
const SILENT_CHECKS = 2
/** The number of failed test connections in a row, one per interval. A busy server may accept none for a while. */
const FAILED_CONNECTIONS = 3

interface ReachabilityOptions {
  /** Opens a test connection. Resolves with whether it was established or refused. */
  tryConnection: () => Promise<boolean>
  /** Whether the server still has to answer a request. */
  isOwed: () => boolean
  onUnreachable: () => void
  everyMs?: number | undefined
}

class Reachability {
  readonly #options: ReachabilityOptions
  #timer: NodeJS.Timeout | null = null
  #silentChecks = 0
  #failed = 0
  #trying = false
  /** Whether the server has sent bytes in this interval of the check. */
  heard = false

  constructor(options: ReachabilityOptions) {
    this.#options = options
  }

  start(): void {
    this.#timer ??= setInterval(() => this.#check(), this.#options.everyMs ?? EVERY_MS).unref()
  }

  stop(): void {
    if (this.#timer) clearInterval(this.#timer)
    this.#timer = null
    this.#reset()
  }

  #reset(): void {
    this.heard = false
    this.#silentChecks = 0
    this.#failed = 0
  }

  #check(): void {
    if (this.heard || !this.#options.isOwed()) {
      this.#reset()
      return
    }
    this.#silentChecks++
    if (this.#silentChecks >= SILENT_CHECKS && !this.#trying) void this.#tryConnection()
  }

  async #tryConnection(): Promise<void> {
    this.#trying = true
    const reached = await this.#options.tryConnection()
    this.#trying = false
    if (reached || this.heard) {
      this.#failed = 0
      return
    }
    this.#failed++
    if (this.#failed < FAILED_CONNECTIONS) return
    this.#reset()
    this.#options.onUnreachable()
  }
}

/** Tests whether a TCP connection is established or refused within `timeoutMs`. Never rejects. */
export function tryTcp(to: NetConnectOpts, timeoutMs: number): Promise<boolean> {
  return new Promise((resolve) => {
    const end = (reached: boolean): void => {
      clearTimeout(timer)
      socket.destroy()
      resolve(reached)
    }
    const timer = setTimeout(() => end(false), timeoutMs)
    const socket = connect(to)
      .on('connect', () => end(true))
      .on('error', (error) => end('code' in error && error.code === 'ECONNREFUSED'))
  })
}
