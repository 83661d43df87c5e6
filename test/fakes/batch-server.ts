// A provider's batch API for tests: real HTTP, files and batches in memory, and the faults that a test asks for. A batch
// is answered when it is looked at for the second time, or when the test says so. Tests see paths and answers in OpenAI's
// form; as Anthropic's, it translates them on their way.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { parsedLines } from '../support/api.ts'
import { type Listening, listen } from '../support/listen.ts'
import { completion, message } from './upstream.ts'

/** Types of upstreams that are batch APIs. */
export const BATCH_API_TYPES = ['openai-batch', 'anthropic-batch'] as const
export type BatchApiType = (typeof BATCH_API_TYPES)[number]

export function testEachType(name: string, run: (type: BatchApiType) => Promise<void>): void {
  for (const type of BATCH_API_TYPES) test(`${type}: ${name}`, () => run(type))
}

export interface RemoteFile {
  id: string
  filename: string
  content: string
}

export interface RemoteBatch {
  id: string
  input_file_id: string
  endpoint: string
  metadata: Record<string, string>
  created_at: number
  status: string
  output_file_id: string | null
  error_file_id: string | null
  errors: unknown
  looks: number
  /** How many of its requests were answered; null while it runs. */
  answered: number | null
}

interface InputLine {
  custom_id: string
  body: { model: string; messages: { content: string }[] }
}

export interface RemoteCall {
  method: string
  /** Without `/v1` and `/messages`: `/files/file-1/content`, `/batches`. */
  path: string
  query: URLSearchParams
  headers: IncomingMessage['headers']
  /** How many calls of this method on this kind of path there were, this one included. */
  count: number
}

export interface RemoteAnswer {
  status: number
  headers?: Record<string, string>
  /** Text as it is, else as JSON. */
  body: unknown
  /** The connection breaks after so many bytes of the body. */
  cutAt?: number
}

const NO_ANSWER = 0
const ENDS = ['completed', 'failed', 'expired', 'cancelled']

/** `lost`: the connection breaks before an answer. */
export type Answered = RemoteAnswer | 'lost'

export interface Faults {
  /** In place of the usual answer; a call that `usual` is not asked of has no effect. */
  answer: ((call: RemoteCall, usual: () => RemoteAnswer) => Answered) | null
  /** What the output file has in place of its lines. */
  output: ((lines: string[]) => string | null) | null
  /** The connection breaks before a batch is created, or after it, so many times. */
  dropCreates: number
  loseCreates: number
  /** Every batch is created twice. */
  createTwice: boolean
  /** How batches end: after this share of their lines. */
  end: { status: 'completed' | 'expired' | 'cancelled'; share: number }
  /** Result lines that are left out, or come twice, or belong to nobody: one of so many. */
  missingEvery: number
  doubledEvery: number
  unknown: boolean
  /** Every batch fails with these words. */
  fail: { code: string; message: string } | null
  /** Answers every call with this status. */
  status: number | null
  /** Files cannot be read. */
  unreadable: boolean
  /** Batches stay unfinished. */
  holds: boolean
}

const NO_FAULTS: Faults = {
  answer: null,
  output: null,
  dropCreates: 0,
  loseCreates: 0,
  createTwice: false,
  end: { status: 'completed', share: 1 },
  missingEvery: 0,
  doubledEvery: 0,
  unknown: false,
  fail: null,
  status: null,
  unreadable: false,
  holds: false,
}

export class BatchServer implements AsyncDisposable {
  readonly files = new Map<string, RemoteFile>()
  readonly batches = new Map<string, RemoteBatch>()
  /** Every call, as `METHOD path`. */
  readonly calls: string[] = []
  readonly creates: { key: string | undefined; metadata: Record<string, string> }[] = []
  faults: Faults
  #at!: Listening
  #ids = 0
  #listeners: (() => void)[] = []

  /** As whose it speaks. */
  readonly type: BatchApiType

  private constructor(faults: Partial<Faults>, type: BatchApiType) {
    this.type = type
    this.faults = { ...NO_FAULTS, ...faults }
  }

  static async start(
    faults: Partial<Faults> = {},
    type: BatchApiType = 'openai-batch',
  ): Promise<BatchServer> {
    const server = new BatchServer(faults, type)
    server.#at = await listen(createServer((request, response) => void server.#serve(request, response)))
    return server
  }

  get port(): number {
    return this.#at.port
  }

  get base_url(): string {
    return `${this.#at.url}/v1`
  }

  get endpoint(): string {
    return this.#isAnthropic ? '/v1/messages' : '/v1/chat/completions'
  }

  /** An input file of lines for it: `l0`, `l1` and so on. */
  lines(count: number, max_tokens = 16): string {
    const { endpoint: url } = this
    return Array.from({ length: count }, (_, i) => {
      const body = { model: 'm', max_tokens, messages: [{ role: 'user', content: `l${i}` }] }
      return JSON.stringify({ custom_id: `l${i}`, method: 'POST', url, body })
    }).join('\n')
  }

  /** All lines that were ever sent in batches, by custom_id. */
  sent(): string[] {
    return [...this.batches.values()].flatMap(({ input_file_id }) =>
      this.#input(input_file_id).map(({ custom_id }) => custom_id),
    )
  }

  /** Asks again after every call, until there is an answer. */
  async until<T>(ask: () => T | undefined): Promise<T> {
    for (;;) {
      const called = new Promise<void>((resolve) => this.#listeners.push(resolve))
      const answer = ask()
      if (answer !== undefined) return answer
      await called
    }
  }

  close(): Promise<void> {
    return this.#at.close()
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  readonly #inputs = new Map<string, InputLine[]>()
  readonly #counts = new Map<string, number>()

  #input(file_id: string): InputLine[] {
    const known = this.#inputs.get(file_id)
    if (known) return known
    const lines = parsedLines<InputLine>(this.files.get(file_id)?.content ?? '')
    this.#inputs.set(file_id, lines)
    return lines
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await text(request)
    const { pathname, searchParams: query } = new URL(request.url ?? '', 'http://x')
    const path = pathname.replace(this.#isAnthropic ? '/v1/messages' : '/v1', '')
    const { method = '', headers } = request
    this.calls.push(`${method} ${path}`)
    const kind = `${method} ${path.replace(/-\d+/, '')}`
    const count = (this.#counts.get(kind) ?? 0) + 1
    this.#counts.set(kind, count)
    const { status, answer } = this.faults
    const usual = (): RemoteAnswer => this.#answer(method, path, headers, body)
    const respond = (answered: Answered): void => send(response, this.#inItsForm(answered))
    if (status !== null) respond({ status, body: { error: { message: 'as the test says' } } })
    else if (answer !== null) respond(answer({ method, path, query, headers, count }, usual))
    else {
      const isCreation = method === 'POST' && path === '/batches'
      const done = usual()
      respond(isCreation && this.faults.loseCreates-- > 0 ? 'lost' : done)
    }
    for (const listener of this.#listeners.splice(0)) listener()
  }

  #answer(method: string, path: string, headers: IncomingMessage['headers'], body: string): RemoteAnswer {
    const [, kind = '', id = '', what = ''] = path.split('/')
    const none = { status: 404, body: { error: { message: 'no such object' } } }
    const ok = (value: unknown): RemoteAnswer => ({ status: 200, body: value })
    const list = (all: Iterable<unknown>): RemoteAnswer =>
      ok({ object: 'list', data: [...all].reverse(), has_more: false })
    if (kind === 'files') {
      if (method === 'POST') return ok(this.#addFile(body))
      if (id === '') return list(this.files.values())
      const file = this.files.get(id)
      if (!file) return none
      if (method === 'DELETE') this.files.delete(id)
      if (what === 'content' && this.faults.unreadable) return { ...none, status: 500 }
      return ok(what === 'content' ? file.content : { ...file, content: undefined })
    }
    if (kind !== 'batches') return none
    if (method === 'POST' && id === '') {
      const asked = JSON.parse(body)
      this.creates.push({ key: headers['idempotency-key'] as string | undefined, metadata: asked.metadata })
      if (this.faults.dropCreates-- > 0) return { status: NO_ANSWER, body: '' }
      const order = this.#order(asked)
      const batch = this.#create(order)
      if (this.faults.createTwice) this.#create(order)
      return ok(batch)
    }
    if (id === '') {
      if (this.#isAnthropic) for (const batch of this.batches.values()) this.#look(batch)
      return list(this.batches.values())
    }
    const batch = this.batches.get(id)
    if (!batch) return none
    if (what === 'cancel') {
      if (ENDS.includes(batch.status)) return { status: 400, body: { error: { message: 'it has ended' } } }
      batch.status = 'cancelling'
      return ok(batch)
    }
    if (what === 'results') {
      const file = this.files.get(batch.output_file_id ?? '')
      return this.faults.unreadable ? { ...none, status: 500 } : file ? ok(file.content) : none
    }
    if (method === 'DELETE') {
      for (const file of [batch.input_file_id, batch.output_file_id]) this.files.delete(file ?? '')
      return ok({ id, type: 'message_batch_deleted' })
    }
    this.#look(batch)
    return ok(batch)
  }

  get #isAnthropic(): boolean {
    return this.type === 'anthropic-batch'
  }

  #look(batch: RemoteBatch): void {
    batch.looks++
    if (ENDS.includes(batch.status)) return
    if (batch.status === 'cancelling') this.#end(batch, 'cancelled', this.faults.end.share)
    else if (!this.faults.holds && batch.looks > 1)
      this.#end(batch, this.faults.end.status, this.faults.end.share)
  }

  #order(body: object): Pick<RemoteBatch, 'input_file_id' | 'endpoint' | 'metadata'> {
    if (!this.#isAnthropic) return body as RemoteBatch
    const { requests } = body as { requests: { custom_id: string; params: object }[] }
    const lines = requests.map(({ custom_id, params }) => JSON.stringify({ custom_id, body: params }))
    const file = this.#store('requests', lines.join('\n'))
    return { input_file_id: file.id, endpoint: '/v1/messages', metadata: {} }
  }

  #inItsForm(answer: Answered): Answered {
    if (!this.#isAnthropic || answer === 'lost') return answer
    const { body } = answer
    if (typeof body !== 'object' || body === null) return answer
    if ('error' in body) {
      const error = { type: 'api_error', ...(body.error as object) }
      return { ...answer, body: { type: 'error', error, request_id: 'req_1' } }
    }
    if ('data' in body) {
      const data = (body.data as RemoteBatch[]).map((one) => this.#messageBatch(one))
      return { ...answer, body: { ...body, data, first_id: data.at(0)?.id, last_id: data.at(-1)?.id } }
    }
    return 'input_file_id' in body ? { ...answer, body: this.#messageBatch(body as RemoteBatch) } : answer
  }

  #messageBatch({ id, created_at, status, input_file_id, output_file_id, answered }: RemoteBatch) {
    const total = this.#input(input_file_id).length
    const left = total - (answered ?? 0)
    const isLeft = (as: string): number => (status === as ? left : 0)
    const processing_status = ENDS.includes(status) ? 'ended' : status.replace('cancell', 'cancel')
    return {
      id,
      type: 'message_batch',
      processing_status,
      request_counts: {
        processing: answered === null ? left : 0,
        succeeded: answered ?? 0,
        errored: isLeft('completed'),
        canceled: isLeft('cancelled'),
        expired: isLeft('expired'),
      },
      created_at: typeof created_at === 'number' ? new Date(created_at * 1000).toISOString() : created_at,
      results_url: output_file_id && `${this.base_url}/messages/batches/${id}/results`,
    }
  }

  #addFile(multipart: string): RemoteFile {
    const [, filename = ''] = /filename="([^"]*)"/.exec(multipart) ?? []
    const start = multipart.indexOf('\r\n\r\n', multipart.indexOf('filename=')) + 4
    return this.#store(filename, multipart.slice(start, multipart.lastIndexOf('\r\n--')))
  }

  #store(filename: string, content: string): RemoteFile {
    const file = { id: `file-${++this.#ids}`, filename, content }
    this.files.set(file.id, file)
    return file
  }

  #create(order: Pick<RemoteBatch, 'input_file_id' | 'endpoint' | 'metadata'>): RemoteBatch {
    this.#input(order.input_file_id)
    const batch: RemoteBatch = {
      ...order,
      id: `batch-${++this.#ids}`,
      created_at: Math.floor(Date.now() / 1000),
      status: 'in_progress',
      output_file_id: null,
      error_file_id: null,
      errors: null,
      looks: 0,
      answered: null,
    }
    this.batches.set(batch.id, batch)
    return batch
  }

  #end(batch: RemoteBatch, status: string, share: number): void {
    const { missingEvery, doubledEvery, unknown, fail } = this.faults
    if (fail) {
      batch.status = 'failed'
      batch.errors = { object: 'list', data: [fail] }
      return
    }
    batch.status = status
    const lines = this.#input(batch.input_file_id)
    const output: string[] = []
    const error: string[] = []
    batch.answered = 0
    for (const [i, { custom_id, body }] of lines.entries()) {
      if (i >= lines.length * share) {
        const code = `batch_${status}`
        if (this.#isAnthropic) {
          output.push(`{"custom_id":"${custom_id}","result":{"type":"${status.replace('ll', 'l')}"}}`)
          continue
        }
        error.push(
          JSON.stringify({ id: `r-${i}`, custom_id, response: null, error: { code, message: code } }),
        )
        continue
      }
      const content = body.messages.at(-1)?.content ?? ''
      const line = this.#isAnthropic
        ? `{"custom_id":"${custom_id}","result":{"type":"succeeded","message":${message(content)}}}`
        : `{"id":"r-${i}","custom_id":"${custom_id}","response":{"status_code":200,"request_id":"x","body":${completion(content)}},"error":null}`
      if (missingEvery > 0 && i % missingEvery === 0) continue
      batch.answered++
      output.push(line)
      if (doubledEvery > 0 && i % doubledEvery === 0) output.push(line)
    }
    if (unknown)
      output.unshift('{"custom_id":"nobody","response":{"status_code":200,"body":{}},"error":null}')
    // In no order.
    output.reverse()
    const content = this.faults.output ? this.faults.output(output) : `${output.join('\n')}\n`
    if (output.length > 0 && content !== null) batch.output_file_id = this.#store('output.jsonl', content).id
    if (error.length > 0) batch.error_file_id = this.#store('error.jsonl', `${error.join('\n')}\n`).id
  }
}

function send(response: ServerResponse, answer: Answered): void {
  if (answer === 'lost' || answer.status === NO_ANSWER) return void response.destroy()
  const { status, headers = {}, body, cutAt } = answer
  const bytes = Buffer.from(typeof body === 'string' ? body : JSON.stringify(body))
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': String(bytes.length),
    ...headers,
  })
  if (cutAt === undefined) response.end(bytes)
  else response.write(bytes.subarray(0, cutAt), () => response.destroy())
}
