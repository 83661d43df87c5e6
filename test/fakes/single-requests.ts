// The part of the API that `gather` uses, over real HTTP, where a test decides when requests end, and what breaks.
import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { lineRequestId, newId } from '../../src/domain/ids.ts'
import { type Listening, listen } from '../support/listen.ts'

export interface FakeRequest {
  id: string
  /** As the call sent it. */
  order: { endpoint: string; body: Record<string, unknown>; completion_window?: string; metadata?: object }
  /** The text of the body. */
  body: string
  /** JSON of the answer, or the error, once it has ended. */
  answer?: string
  error?: { type: string; code: string; message: string }
  cancelled?: true
}

export class FakeSingleRequests implements AsyncDisposable {
  readonly key = 'opk_local_test_secret'
  readonly made: FakeRequest[] = []
  /** Of the calls that arrived, by method and path without IDs. */
  readonly calls = new Map<string, number>()
  /** Ends a request, or leaves it to the test. */
  respond: (request: FakeRequest) => void = () => {}
  /** Answers in place of the service; `reset` breaks the connection before it does anything, `lose` after. */
  fault: (method: string, path: string) => 'reset' | 'lose' | { status: number; body: object } | undefined =
    () => undefined
  readonly keyHashes = [createHash('sha256').update(this.key).digest('hex')]
  readonly #batchId = newId('batch', Date.now())
  readonly #byKey = new Map<string, FakeRequest>()
  #at!: Listening
  #waiting: (() => void)[] = []

  static async start(): Promise<FakeSingleRequests> {
    const fake = new FakeSingleRequests()
    fake.#at = await listen(createServer((request, response) => void fake.#handle(request, response)))
    return fake
  }

  get url(): string {
    return this.#at.url
  }

  /** Breaks its connections, and listens again at the same port. */
  async restart(): Promise<void> {
    const { port } = this.#at
    await this.#at.close()
    this.#at = await listen(
      createServer((request, response) => void this.#handle(request, response)),
      port,
    )
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#at.close()
  }

  end(request: FakeRequest, end: Pick<FakeRequest, 'answer' | 'error'>): void {
    Object.assign(request, end)
    this.#wake()
  }

  reset(): void {
    this.made.length = 0
    this.calls.clear()
    this.#byKey.clear()
    this.respond = () => {}
    this.fault = () => undefined
  }

  /** Resolves when such a call arrives. */
  async hasCalled(name: string): Promise<void> {
    const before = this.calls.get(name) ?? 0
    while ((this.calls.get(name) ?? 0) === before) await this.#change()
  }

  /** Resolves when as many requests have been made. */
  async hasMade(count: number): Promise<void> {
    while (this.made.length < count) await this.#change()
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', 'http://fake')
    const name = `${request.method} ${url.pathname.replace(/(req|batch)_\w+/, '…')}`
    this.calls.set(name, (this.calls.get(name) ?? 0) + 1)
    this.#wake()
    const fault = this.fault(request.method ?? '', url.pathname)
    if (fault === 'reset') return void request.socket.destroy()
    const send = (status: number, body: object | string): void => {
      response.writeHead(status, { 'content-type': 'application/json' })
      response.end(typeof body === 'string' ? body : JSON.stringify(body))
    }
    if (typeof fault === 'object') return send(fault.status, fault.body)
    const [, , kind, id, part] = url.pathname.split('/')
    if (url.pathname === '/readyz') return send(200, { version: '0.0.0-test' })
    if (kind === 'quotas')
      return send(200, { plan: 'payg', completion_windows: ['4h', '24h'], live_price_share: 0.5 })
    if (kind === 'models' && id === 'nope')
      return send(404, {
        error: { type: 'invalid_request_error', code: 'model_not_found', message: 'There is no such model.' },
      })
    if (kind === 'models' && id) return send(200, { id, object: 'model' })
    if (kind === 'models')
      return send(200, { object: 'list', data: [{ id: 'sim-1', object: 'model' }], has_more: false })
    if (kind === 'batches' && !id) return send(200, { object: 'list', data: [] })
    if (kind === 'batches') return send(200, this.#page(url))
    const found = this.made.find((one) => one.id === id)
    if (request.method === 'POST' && id === undefined) {
      const made = this.#make(await buffer(request), String(request.headers['idempotency-key']))
      return fault === 'lose' ? void request.socket.destroy() : send(202, shown(made))
    }
    if (!found)
      return send(404, {
        error: { type: 'invalid_request_error', code: 'request_not_found', message: 'None.' },
      })
    if (part === 'cancel') {
      found.cancelled = true
      this.end(found, { error: { type: 'api_error', code: 'batch_cancelled', message: 'It was cancelled.' } })
    }
    response.once('close', () => this.#wake())
    while (url.searchParams.has('wait') && !hasEnded(found) && !response.destroyed) await this.#change()
    send(200, shown(found))
  }

  #make(sent: Buffer, key: string): FakeRequest {
    const earlier = this.#byKey.get(key)
    if (earlier) return earlier
    const text = sent.toString()
    const order: FakeRequest['order'] = JSON.parse(text)
    const id = lineRequestId(this.#batchId, this.made.length + 1)
    const made = { id, order, body: text.slice(text.indexOf('"body":') + '"body":'.length, -1) }
    this.made.push(made)
    this.#byKey.set(key, made)
    this.respond(made)
    this.#wake()
    return made
  }

  #wake(): void {
    for (const wake of this.#waiting.splice(0)) wake()
  }

  #change(): Promise<void> {
    return new Promise((resolve) => this.#waiting.push(resolve))
  }

  #page({ searchParams }: URL): string {
    const wanted = searchParams.get('lines')?.split(',').map(Number) ?? []
    const lines = this.made.filter((one, i) => wanted.includes(i + 1) && hasEnded(one))
    return lines.map((line) => `${resultLine(line)}\n`).join('')
  }
}

function hasEnded({ answer, error }: FakeRequest): boolean {
  return answer !== undefined || error !== undefined
}

function shown(request: FakeRequest): string {
  if (hasEnded(request)) return resultLine(request).replace('{', `{"object":"request","status":"completed",`)
  const waiting_reason = 'Its turn has not come.'
  return JSON.stringify({ id: request.id, status: 'queued', waiting_reason, error: null, response: null })
}

function resultLine({ id, answer, error }: FakeRequest): string {
  const response = answer === undefined ? null : `{"status_code":200,"request_id":"${id}","body":${answer}}`
  return `{"id":"${id}","custom_id":"x","response":${response},"error":${JSON.stringify(error ?? null)}}`
}
