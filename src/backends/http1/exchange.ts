// One request and its result: a complete answer, or a failure. It settles once.
import { HEADER_NAME, OWN_HEADER } from '../../domain/credentials.ts'
import type { FailureCode } from '../backend.ts'
import type { FailureReason } from '../failure-reason.ts'

/** The result of an exchange. `unreachable`: no connection was opened, so nothing was sent. */
export type Exchanged =
  | {
      kind: 'whole'
      status: number
      body: Buffer
      retry_after_ms: number | undefined
      content_encoding: string | undefined
    }
  | ({ kind: 'broken'; code: FailureCode; unreachable?: boolean } & FailureReason)

/** The connection that now carries an exchange. */
interface Carrier {
  /** Closes the connection of an exchange that was settled elsewhere. */
  drop(): void
}

export class Exchange {
  /** The head of the request, up to and including `content-length: `. */
  readonly head: Buffer
  readonly body: Uint8Array
  readonly project_id: string
  readonly #settle: (exchanged: Exchanged) => void
  carrier: Carrier | null = null
  #settled = false

  constructor(head: Buffer, body: Uint8Array, project_id: string, settle: (exchanged: Exchanged) => void) {
    this.head = head
    this.body = body
    this.project_id = project_id
    this.#settle = settle
  }

  get settled(): boolean {
    return this.#settled
  }

  settle(exchanged: Exchanged): void {
    if (this.#settled) return
    this.#settled = true
    this.carrier = null
    this.#settle(exchanged)
  }

  /** Settles the exchange at once and closes its connection, if any; the queue skips settled exchanges. */
  breakOff(code: FailureCode, reason: string): void {
    const { carrier } = this
    this.settle({ kind: 'broken', code, reason })
    carrier?.drop()
  }

  abort(): void {
    this.breakOff('upstream_unavailable', 'aborted')
  }
}

// Every request to a server begins with the same head; only its length differs.

/** The error for an upstream whose configuration makes requests that HTTP cannot carry. */
class Unsendable extends TypeError {}

/** The result of a request that was not sent because of an Unsendable; throws any other error again. */
export function unsendable(error: unknown): Extract<Exchanged, { kind: 'broken' }> {
  if (!(error instanceof Unsendable)) throw error
  return {
    kind: 'broken',
    code: 'upstream_unavailable',
    reason: 'requests to the server cannot be sent as it is configured',
    operatorReason: `${error.message}: correct the key or the headers of the upstream`,
    unreachable: true,
  }
}

const VALUE = /^[\t\x20-\x7e\x80-\xff]*$/

const END = 'connection: keep-alive\r\ncontent-length: '

/**
 * Builds the head of a request up to its length; the length and a blank line follow. `headers` have names in lower
 * case. Throws an Unsendable, which quotes no value, for a header that cannot be sent.
 */
export function requestHead(
  authority: string,
  path: string,
  headers: ReadonlyMap<string, string>,
  method: 'GET' | 'POST' = 'POST',
): Buffer {
  let head = `${method} ${path} HTTP/1.1\r\n`
  if (!headers.has('host')) head += `host: ${authority}\r\n`
  for (const [name, value] of headers) {
    if (!HEADER_NAME.test(name))
      throw new Unsendable(`the header name ${JSON.stringify(name)} cannot be sent`)
    if (OWN_HEADER.test(name)) throw new Unsendable(`the header ${name} is set by the service itself`)
    if (!VALUE.test(value)) throw new Unsendable(`the value of the header ${name} cannot be sent`)
    head += `${name}: ${value}\r\n`
  }
  return Buffer.from(head + END, 'latin1')
}

/** Adds a header of one request to a head; the name is in lower case. */
export function withHeader(head: Buffer, name: string, value: string): Buffer {
  const at = head.length - END.length
  return Buffer.concat([
    head.subarray(0, at),
    Buffer.from(`${name}: ${value}\r\n`, 'latin1'),
    head.subarray(at),
  ])
}
