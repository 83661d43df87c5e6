// One HTTP exchange on a pooled connection, read to its end or broken off: by its caller, by its time limit,
// by an answer that does not stop growing. It speaks to undici's dispatch directly, as undici's own `request`
// does, but gathers the body itself: no stream is built for an answer that is wanted whole.
import { type Dispatcher, errors } from 'undici'
import type { FailureCode } from '../backend.ts'
import { type RetryHeaders, retryAfterMs } from './retry-after.ts'

export type Exchange =
  | { kind: 'whole'; status: number; text: string; retry_after_ms: number | undefined }
  | { kind: 'broken'; code: FailureCode; reason: string }

export interface ExchangeLimits {
  /** From the moment the request has a connection to the last byte of the answer. */
  timeout_ms: number
  answer_bytes_max: number
}

export class Attempt implements Dispatcher.DispatchHandler {
  readonly #limits: ExchangeLimits
  readonly #settle: (exchange: Exchange) => void
  #settled = false
  #controller: Dispatcher.DispatchController | undefined
  #timer: NodeJS.Timeout | undefined
  #status = 0
  #headers: RetryHeaders = {}
  #first: Buffer | undefined
  #rest: Buffer[] | undefined
  #bytes = 0

  constructor(limits: ExchangeLimits, settle: (exchange: Exchange) => void) {
    this.#limits = limits
    this.#settle = settle
  }

  /** Settles at once and closes the connection if the request has one; one still in a queue is never sent. */
  breakOff(code: FailureCode, reason: string): void {
    if (this.#settled) return
    this.#end({ kind: 'broken', code, reason })
    this.#controller?.abort(new Error(reason))
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.#settled) {
      controller.abort(new Error('given up before it was sent'))
      return
    }
    this.#controller = controller
    const { timeout_ms } = this.#limits
    this.#timer = setTimeout(() => {
      this.breakOff('upstream_timeout', `no complete answer within ${timeout_ms} ms`)
    }, timeout_ms)
  }

  onResponseStart(_controller: Dispatcher.DispatchController, status: number, headers: RetryHeaders): void {
    if (status < 200) return
    this.#status = status
    this.#headers = headers
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    this.#bytes += chunk.length
    if (this.#bytes > this.#limits.answer_bytes_max) {
      const reason = `the answer is larger than ${this.#limits.answer_bytes_max} bytes`
      this.breakOff('upstream_invalid_response', reason)
    } else if (this.#first === undefined) this.#first = chunk
    else if (this.#rest === undefined) this.#rest = [this.#first, chunk]
    else this.#rest.push(chunk)
  }

  onResponseEnd(): void {
    if (this.#settled) return
    const body = this.#rest === undefined ? this.#first : Buffer.concat(this.#rest, this.#bytes)
    const status = this.#status
    const retry_after_ms = retryAfterMs(this.#headers, Date.now())
    this.#end({ kind: 'whole', status, text: body?.toString('utf8') ?? '', retry_after_ms })
  }

  onResponseError(_controller: Dispatcher.DispatchController | null, error: Error): void {
    this.#end({ kind: 'broken', ...causeOf(error) })
  }

  #end(exchange: Exchange): void {
    if (this.#settled) return
    this.#settled = true
    clearTimeout(this.#timer)
    this.#settle(exchange)
  }
}

function causeOf(error: Error): { code: FailureCode; reason: string } {
  const mark = 'code' in error && typeof error.code === 'string' ? error.code : ''
  const reason = reasonOf(error, mark)
  if (error instanceof errors.HTTPParserError || error instanceof errors.HeadersOverflowError) {
    return { code: 'upstream_invalid_response', reason }
  }
  if (mark === 'UND_ERR_HEADERS_TIMEOUT' || mark === 'UND_ERR_BODY_TIMEOUT') {
    return { code: 'upstream_timeout', reason }
  }
  return { code: 'upstream_unavailable', reason }
}

function reasonOf(error: Error, mark: string): string {
  // A name with several addresses, none of which answered: the reasons are inside.
  if (error instanceof AggregateError && error.message === '') {
    const reasons = error.errors.map((inner) => (inner instanceof Error ? inner.message : String(inner)))
    return [...new Set(reasons)].join('; ') || mark
  }
  if (error.message === '') return mark || error.name
  return mark === '' || error.message.includes(mark) ? error.message : `${error.message} (${mark})`
}
