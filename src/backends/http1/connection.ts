// A connection to a model server carries one exchange at a time. It is reused for the same project until the server
// sends an answer before its request, bytes after an answer or between exchanges, or `Connection: close`.
//
// It uses plain sockets instead of an HTTP library because it carries every line: bytes are read into one reused
// buffer, and a request is one write.
import { connect as connectTcp, type Socket } from 'node:net'
import type { Certificates } from '../../domain/credentials.ts'
import { messageOf } from '../../domain/errors.ts'
import { retryAfterMs } from '../../domain/retry-after.ts'
import type { FailureCode } from '../backend.ts'
import type { FailureReason } from '../failure-reason.ts'
import type { Receiving, ResponseMemory } from '../response-memory.ts'
import type { Exchange } from './exchange.ts'
import { type HttpProxy, openTunnel } from './proxy.ts'
import { ResponseError, ResponseReader } from './response-reader.ts'

/** Loads TLS for the first connection that needs it: the module takes 6 MiB. */
const tlsModule = (): typeof import('node:tls') => process.getBuiltinModule('node:tls')

export interface Target {
  tls: boolean
  /** The host name or address, without the brackets of an IPv6 address. */
  host: string
  /** The address or name to connect to, where no proxy resolves it. */
  connectHost: string
  port: number
  /** A Unix socket to connect to instead of the host. */
  socket?: string | null
  /** Checks that a connection just established leads to the right server; absent: no check. */
  isOwn?: (() => Promise<boolean>) | null
  /** `host:port`, or `host` where the port is the default of the scheme. */
  authority: string
  proxy: HttpProxy | null
  /** The certificates of the next connection; Node's root certificates apply where `ca` is absent. */
  certificates: () => Certificates
  /** The longest time from the sending of a request to the last byte of its answer. */
  timeout_ms: number
  connectTimeoutMs: number
  answerBytesMax: number
  /** Removes secrets from text of the server before errors quote it. */
  redact: (text: string) => string
  /** The limit on the memory of all answers together. */
  budget: ResponseMemory
}

export interface ConnectionHooks {
  /** Called when the exchange is over and the connection may carry the next one. */
  onFree(connection: Connection): void
  onBytes(): void
  /** Called when the connection can carry no further exchange. */
  onEnded(connection: Connection): void
  /** Called when the connection ended before a byte of the exchange was sent: another connection may carry it. */
  onUnsent(exchange: Exchange): void
  /** The TLS session with which the next connection with the same certificates shortens its handshake. */
  tlsSession: { certificates: Certificates; session: Buffer } | undefined
}

/** The buffer that all sockets share: received bytes are read from it before the next socket is served. */
const RECEIVED = Buffer.allocUnsafeSlow(64 * 1024)
/** The size of a request, in bytes, up to which head and body are copied into one buffer and written at once. */
const WRITE_BYTES_MAX = 16 * 1024
const LENGTH_BYTES_MAX = 20
const END_OF_HEAD = '\r\n\r\n'
/** The TCP keep-alive: a generation takes minutes without traffic, and middleboxes drop idle connections. */
const TCP_KEEP_ALIVE_MS = 60_000
const SOCKET_OPTIONS = { noDelay: true, keepAlive: true, keepAliveInitialDelay: TCP_KEEP_ALIVE_MS }

export class Connection implements Receiving {
  readonly #target: Target
  readonly #hooks: ConnectionHooks
  #socket: Socket
  readonly #reader: ResponseReader
  readonly #timer: NodeJS.Timeout
  #exchange: Exchange | null = null
  #connected = false
  #clearConnectTimer: () => void = () => {}
  /** Whether nothing of the current exchange has been sent. */
  #unsent = false
  /** Whether the server has ever sent anything on this connection. */
  #spoke = false
  #ended = false
  /** Whether reading is paused because answers take too much memory: bytes then wait in the socket. */
  #paused = false
  /** The buffer of outgoing requests, reused: nothing is written while an answer is awaited. */
  #out = Buffer.allocUnsafe(2048)
  /** The only project whose exchanges the connection carries: an unsolicited answer then reaches no other project. */
  readonly project_id: string
  /** The time since which the connection is idle, in ms of `performance.now()`. */
  idleSince = 0

  /** Opens a connection and then sends `exchange`. */
  constructor(target: Target, hooks: ConnectionHooks, exchange: Exchange) {
    this.#target = target
    this.#hooks = hooks
    this.project_id = exchange.project_id
    this.#reader = new ResponseReader(target.answerBytesMax, target.redact)
    this.#timer = setTimeout(() => this.#onTimeout(), target.timeout_ms).unref()
    this.#begin(exchange)
    this.#socket = this.#connect()
    this.#watch(this.#socket)
  }

  #watch(socket: Socket): void {
    socket.on('error', (error) => this.#onError(error))
    socket.on('end', () => this.#onEnd())
    socket.on('close', () => this.#onClose())
  }

  /** The idle time, in seconds, after which the server closes the connection; null where it sends none. */
  get keepAliveS(): number | null {
    return this.#reader.keepAliveS
  }

  /** Gives the free connection its next exchange; `flush` sends it. */
  accept(exchange: Exchange): void {
    this.#begin(exchange)
    this.#unsent = true
    this.#timer.refresh()
  }

  flush(): void {
    this.#unsent = false
    this.#spoke = true
    if (this.#exchange && !this.#ended) this.#write(this.#exchange)
  }

  /** Closes the connection after its exchange was settled elsewhere: an answer that still comes has no reader. */
  drop(): void {
    this.#exchange = null
    this.#end()
  }

  close(): void {
    this.#fail('upstream_unavailable', 'aborted')
  }

  /** Fails the exchange because the server has become unreachable. */
  giveUp(): void {
    this.#fail('upstream_unavailable', 'the server became unreachable before it answered')
  }

  pause(): void {
    this.#paused = true
    this.#socket.pause()
  }

  resume(): void {
    this.#paused = false
    // Time in which this process did not read does not count as the server's delay.
    this.#timer.refresh()
    this.#socket.resume()
  }

  #begin(exchange: Exchange): void {
    this.#exchange = exchange
    exchange.carrier = this
  }

  #connect(): Socket {
    const { tls, connectTimeoutMs, proxy, connectHost: host, port } = this.#target
    const connectTimer = setTimeout(() => {
      this.#fail('upstream_unavailable', `no connection within ${connectTimeoutMs} ms`)
    }, connectTimeoutMs)
    this.#clearConnectTimer = () => clearTimeout(connectTimer)
    const onConnected = (): void => this.#onConnected()
    if (proxy === null)
      return tls ? this.#connectTls({ host, port }, onConnected) : this.#connectPlain(host, port, onConnected)
    if (tls) return this.#tunnel(proxy)
    if (!proxy.tls) return this.#connectPlain(proxy.host, proxy.port, onConnected)
    const socket = tlsModule().connect({ ...SOCKET_OPTIONS, host: proxy.host, port: proxy.port }, onConnected)
    return socket.on('data', (bytes: Buffer) => this.#onBytes(bytes, bytes.length))
  }

  #onConnected(): void {
    const { isOwn } = this.#target
    if (!isOwn) this.#onVerified()
    else
      void isOwn()
        .catch(() => false)
        .then((own) => {
          if (this.#ended) return
          if (own) this.#onVerified()
          else this.#fail('upstream_unavailable', 'another process listens where the server should')
        })
  }

  #onVerified(): void {
    this.#clearConnectTimer()
    this.#connected = true
    this.#timer.refresh()
    // Bytes that have arrived by then belong to no request.
    setImmediate(() => this.flush())
  }

  #connectPlain(host: string, port: number, onConnected: () => void): Socket {
    const callback = (length: number): boolean => {
      this.#onBytes(RECEIVED, length)
      return true
    }
    const { socket } = this.#target
    const to = socket ? { path: socket } : { host, port }
    return connectTcp({ ...SOCKET_OPTIONS, ...to, onread: { buffer: RECEIVED, callback } }, onConnected)
  }

  #connectTls(to: { host: string; port: number } | { socket: Socket }, onConnected: () => void): Socket {
    const { host } = this.#target
    const certificates = this.#target.certificates()
    const servername = isAddress(host) ? {} : { servername: host }
    const last = this.#hooks.tlsSession
    const session = last?.certificates === certificates ? last.session : undefined
    const ALPNProtocols = ['http/1.1']
    // Certificates are checked against the name, also behind a tunnel.
    const options = { ...SOCKET_OPTIONS, host, ...to, ...servername, ...certificates, session, ALPNProtocols }
    const socket = tlsModule().connect(options, onConnected)
    socket.on('session', (latest: Buffer) => {
      this.#hooks.tlsSession = { certificates, session: latest }
    })
    return socket.on('data', (bytes: Buffer) => this.#onBytes(bytes, bytes.length))
  }

  /** Opens TLS with the server through the proxy. */
  #tunnel(proxy: HttpProxy): Socket {
    const { host, port } = this.#target
    const authority = `${host.includes(':') ? `[${host}]` : host}:${port}`
    const onOpen = (): void => {
      raw.removeAllListeners('end').removeAllListeners('close')
      this.#socket = this.#connectTls({ socket: raw }, () => this.#onConnected())
      this.#watch(this.#socket)
    }
    const onRefused = (why: string): void =>
      this.#fail('upstream_unavailable', 'no connection to the server', { operatorReason: why })
    const ask = (): void => openTunnel(raw, authority, proxy, onOpen, onRefused)
    const to = { ...SOCKET_OPTIONS, host: proxy.host, port: proxy.port }
    const raw: Socket = proxy.tls ? tlsModule().connect(to, ask) : connectTcp(to, ask)
    return raw
  }

  #write({ head, body }: Exchange): void {
    const small = body.length <= WRITE_BYTES_MAX
    const size = head.length + LENGTH_BYTES_MAX + (small ? body.length : 0)
    if (this.#out.length < size) this.#out = Buffer.allocUnsafe(size)
    const out = this.#out
    out.set(head, 0)
    let end = head.length
    end += out.write(`${body.length}${END_OF_HEAD}`, end, 'latin1')
    if (small) {
      out.set(body, end)
      this.#socket.write(out.subarray(0, end + body.length))
      return
    }
    this.#socket.cork()
    this.#socket.write(out.subarray(0, end))
    this.#socket.write(body)
    this.#socket.uncork()
  }

  #onBytes(bytes: Buffer, length: number): void {
    this.#hooks.onBytes()
    const exchange = this.#exchange
    if (exchange === null || this.#unsent || !this.#spoke) {
      // Unsolicited bytes, or a last message of a server that closes an idle connection.
      this.#fail('upstream_unavailable', 'the server spoke before it was asked')
      return
    }
    try {
      const used = this.#reader.read(bytes, length)
      if (used === null) this.#target.budget.received(this, this.#reader.gathered)
      else this.#finish(exchange, used === length)
    } catch (error) {
      this.#onFault(error)
    }
  }

  #finish(exchange: Exchange, inStep: boolean): void {
    const { status, body, headers, keepsAlive } = this.#reader
    this.#exchange = null
    this.#reader.reset()
    this.#target.budget.ended(this)
    const reusable = inStep && keepsAlive && this.#socket.writableLength === 0 && !this.#socket.destroyed
    const retry_after_ms = retryAfterMs(headers, Date.now())
    // First, since the owner of the exchange may close all connections.
    if (reusable) this.#hooks.onFree(this)
    else this.#end()
    exchange.settle({
      kind: 'whole',
      status,
      body,
      retry_after_ms,
      content_encoding: headers['content-encoding'],
    })
  }

  /** Handles the end of the server's bytes, which may end an answer without a length. */
  #onEnd(): void {
    const exchange = this.#exchange
    try {
      if (exchange !== null && !this.#unsent && this.#reader.end()) this.#finish(exchange, false)
      else this.#onClose()
    } catch (error) {
      this.#onFault(error)
    }
  }

  /** Fails the exchange; an error thrown in a socket's callback would end the process. */
  #onFault(error: unknown): void {
    if (error instanceof ResponseError) this.#fail('upstream_invalid_response', error.message, said(error))
    else this.#fail('internal_error', 'The service failed to read the answer.')
  }

  #onTimeout(): void {
    // During connecting, the timeout of connecting applies.
    if (this.#exchange === null || !this.#connected) return
    if (this.#paused) {
      this.#timer.refresh()
      return
    }
    this.#fail('upstream_timeout', `no complete answer within ${this.#target.timeout_ms} ms`)
  }

  #onClose(): void {
    const { hasBegun } = this.#reader
    const reason = `the server closed the connection ${hasBegun ? 'within the answer' : 'before it answered'}`
    const operatorReason = `${reason}; if it speaks TLS, write https:// in \`base_url\``
    this.#fail('upstream_unavailable', reason, hasBegun || this.#target.tls ? {} : { operatorReason })
  }

  #onError(error: Error): void {
    const why = this.#connected ? 'the connection broke' : 'no connection to the server'
    const code = codeOf(error)
    this.#fail('upstream_unavailable', code === '' ? why : `${why} (${code})`, {
      operatorReason: reasonOf(error),
    })
  }

  #fail(code: FailureCode, reason: string, more: Omit<FailureReason, 'reason'> = {}): void {
    const exchange = this.#exchange
    this.#exchange = null
    this.#end()
    if (exchange === null) return
    if (this.#unsent) this.#hooks.onUnsent(exchange)
    else
      exchange.settle({
        kind: 'broken',
        code,
        reason,
        ...more,
        unreachable: !this.#connected,
      })
  }

  #end(): void {
    if (this.#ended) return
    this.#ended = true
    this.#target.budget.ended(this)
    clearTimeout(this.#timer)
    this.#clearConnectTimer()
    this.#socket.destroy()
    this.#hooks.onEnded(this)
  }
}

function said({ words }: ResponseError): Pick<FailureReason, 'words'> {
  return words === '' ? {} : { words }
}

function isAddress(host: string): boolean {
  return host.includes(':') || /^\d+(\.\d+){3}$/.test(host)
}

function codeOf(error: Error): string {
  return 'code' in error && typeof error.code === 'string' ? error.code : ''
}

function reasonOf(error: Error): string {
  const mark = codeOf(error)
  // The error of a name with several addresses, none of which answered, has the reasons inside.
  if (error instanceof AggregateError && error.message === '') {
    const reasons = error.errors.map(messageOf)
    return [...new Set(reasons)].join('; ') || mark
  }
  if (error.message === '') return mark || error.name
  const [, advice] = TLS_ADVICE.find(([words]) => words.test(`${mark} ${error.message}`)) ?? []
  // Node's messages about certificates end with an option of Node's own command line.
  const said = advice ? error.message.replace(OPENSSL, '$1').replace(/[;\n].*/s, '') : error.message
  const full = mark === '' || said.includes(mark) ? said : `${said} (${mark})`
  return advice ? `${full}: ${advice}` : full
}

/** An error message of OpenSSL, with its reason as a group. */
const OPENSSL = /^\w+:error:\w+:SSL routines:[^:]*:([^:]*):.*/s

/** Advice by code and message of Node's TLS errors. */
const TLS_ADVICE: readonly (readonly [RegExp, string])[] = [
  [/wrong version number|packet length too long/i, 'it does not speak TLS; write http:// in `base_url`'],
  [
    /SELF_SIGNED|UNABLE_TO_(?:GET_ISSUER|VERIFY)|CERT_UNTRUSTED/,
    'name a PEM file with the certificate of its authority in `ca_file` of the upstream',
  ],
]
