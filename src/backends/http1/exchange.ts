// One request and its result: a complete answer, or a failure. It settles once.
import type { FailureCode } from '../backend.ts'
import type { FailureReason } from '../failure-reason.ts'

/** `unreachable`: no connection came about, so nothing was sent. */
export type Exchanged =
  | {
      kind: 'whole'
      status: number
      body: Buffer
      retry_after_ms: number | undefined
      content_encoding: string | undefined
    }
  | ({ kind: 'broken'; code: FailureCode; unreachable?: boolean } & FailureReason)

/** What carries an exchange at the moment: a connection. */
interface Carrier {
  /** The exchange is over, though nothing came to its end here. */
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

  /** Settles at once and closes its connection if it has one; in a queue it is passed over. */
  breakOff(code: FailureCode, reason: string): void {
    const { carrier } = this
    this.settle({ kind: 'broken', code, reason })
    carrier?.drop()
  }

  abort(): void {
    this.breakOff('upstream_unavailable', 'aborted')
  }
}
