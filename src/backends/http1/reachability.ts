// Notices that a server has become unreachable while it owes answers. A packet filter that drops packets, or a machine
// that lost its power, closes no connection: the requests in flight would wait for their whole timeout, and no further
// request would be sent that could find out.
//
// A server that sends nothing for a while is sent connections that carry nothing. It is unreachable when several in a row
// were not established and it has still sent nothing. A refused connection proves that the server's machine runs.
import { connect, type NetConnectOpts } from 'node:net'

const EVERY_MS = 15_000
/** Intervals without a byte before the first connection is tried. */
const SILENT_CHECKS = 2
/** Connections in a row that fail; each takes an interval. A busy server may accept none for a while. */
const FAILED_CONNECTIONS = 3

interface ReachabilityOptions {
  /** Resolves with whether a connection could be established, or was refused. */
  tryConnection: () => Promise<boolean>
  /** Whether the server owes an answer. */
  isOwed: () => boolean
  onUnreachable: () => void
  everyMs?: number | undefined
}

export class Reachability {
  readonly #options: ReachabilityOptions
  #timer: NodeJS.Timeout | null = null
  #silentChecks = 0
  #failed = 0
  #trying = false
  /** Set whenever bytes arrive. */
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

/** Never rejects. */
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
