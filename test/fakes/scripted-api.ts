// As much of the API as the command line calls, over real HTTP, where a test decides how a batch goes and what
// breaks on the way. The real service is what test/cli/cli.test.ts runs against.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { buffer } from 'node:stream/consumers'
import type { BatchStatus, Reask } from '../../src/domain/batch.ts'
import type { BatchObject } from '../../src/wire/batch.ts'
import type { FileObject } from '../../src/wire/file.ts'
import { type Listening, listen } from '../support/listen.ts'

export interface Seen {
  method: string
  path: string
  headers: IncomingMessage['headers']
  body: Buffer
}

/** Answers in place of the API, or leaves it to it by returning undefined; `reset` breaks the connection. */
export type Fault = (seen: Seen, nth: number) => Reply | 'reset' | undefined

export interface Reply {
  status: number
  headers?: Record<string, string>
  body: unknown
}

export interface Script {
  /** What a batch shows on each look; the last stays. */
  statuses?: readonly BatchStatus[]
  /** custom_id → error code of the lines that fail. */
  fails?: Readonly<Record<string, string>>
  /** The file is refused with these problems. */
  refuse?: readonly { line: number; code: string; message: string }[]
  fault?: Fault
}

const KEY = 'opk_local_test'

export class ScriptedApi {
  readonly key = KEY
  readonly seen: Seen[] = []
  readonly files = new Map<string, { object: FileObject; content: Buffer }>()
  readonly batches = new Map<string, { object: BatchObject; looks: number }>()
  script: Script
  version = '0.0.0'
  #keys = new Map<string, string>()
  #at!: Listening

  constructor(script: Script = {}) {
    this.script = script
  }

  async start(): Promise<void> {
    this.#at = await listen(createServer((request, response) => void this.#handle(request, response)))
  }

  get url(): string {
    return this.#at.url
  }

  stop(): Promise<void> {
    return this.#at.close()
  }

  calls(method: string, path: RegExp): Seen[] {
    return this.seen.filter((seen) => seen.method === method && path.test(seen.path))
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', 'http://api')
    if (url.pathname === '/readyz')
      return void response.end(JSON.stringify({ status: 'ready', version: this.version }))
    const body = await buffer(request).catch(() => Buffer.alloc(0))
    const seen = { method: request.method ?? '', path: url.pathname, headers: request.headers, body }
    this.seen.push(seen)
    const nth = this.seen.filter(({ method, path }) => method === seen.method && path === seen.path).length
    const fault = this.script.fault?.(seen, nth)
    if (fault === 'reset') return void request.socket.destroy()
    const reply = fault ?? this.#reply(seen)
    response.writeHead(reply.status, { 'x-service-request-id': 'req_test', ...reply.headers })
    response.end(Buffer.isBuffer(reply.body) ? reply.body : JSON.stringify(reply.body))
  }

  #reply(seen: Seen): Reply {
    if (seen.headers.authorization !== `Bearer ${KEY}`) {
      return apiError(401, 'invalid_api_key', 'No valid API key was given.')
    }
    const [, , collection = '', id = '', part = ''] = seen.path.split('/')
    if (collection === 'models') {
      return { status: 200, body: { object: 'list', data: [], has_more: false, next_cursor: null } }
    }
    if (collection === 'quotas')
      return { status: 200, body: { plan: 'payg', completion_windows: ['4h', '24h'] } }
    if (collection === 'files') {
      if (seen.method === 'POST') return this.#upload(seen)
      const file = this.files.get(id)
      if (file === undefined) return apiError(404, 'file_not_found', 'There is no such file.')
      if (seen.method === 'DELETE')
        return { status: 200, body: { id, object: 'file', deleted: this.files.delete(id) } }
      return part === 'content' ? content(file.content, seen) : { status: 200, body: file.object }
    }
    if (collection === 'batches') {
      if (seen.method === 'POST' && id === '') return this.#create(seen)
      return this.#look(id)
    }
    return apiError(404, 'unknown_endpoint', 'There is no such endpoint.')
  }

  #upload(seen: Seen): Reply {
    const boundary = /boundary=(.+)$/.exec(seen.headers['content-type'] ?? '')?.[1] ?? ''
    const part = seen.body.indexOf('name="file"')
    const start = seen.body.indexOf('\r\n\r\n', part) + 4
    const sent = seen.body.subarray(start, seen.body.indexOf(`\r\n--${boundary}--`, start))
    const object = this.addFile(sent, /filename="([^"]*)"/.exec(seen.body.toString('latin1'))?.[1] ?? '')
    const { refuse } = this.script
    if (refuse !== undefined) {
      object.status = 'error'
      object.status_details = `line ${refuse[0]?.line}: ${refuse[0]?.message}`
      object.errors = [...refuse]
    }
    return { status: 200, body: { ...object, status: 'pending' } }
  }

  addFile(sent: Buffer, filename: string): FileObject {
    const object: FileObject = {
      id: `file_${this.files.size + 1}`,
      object: 'file',
      purpose: 'batch',
      filename,
      bytes: sent.length,
      line_count: 0,
      status: 'processed',
      region: 'local',
      created: 1_700_000_000,
      created_at: 1_700_000_000,
      expires_at: 1_700_086_400,
    }
    this.files.set(object.id, { object, content: sent })
    return object
  }

  #create(seen: Seen): Reply {
    const asked: {
      input_file_id: string
      completion_window: string
      metadata?: Record<string, string>
      dedupe?: true | 'force'
      order?: 'file'
      reask?: Reask
    } = JSON.parse(seen.body.toString())
    const key = String(seen.headers['idempotency-key'])
    const earlier = this.#keys.get(key)
    if (earlier !== undefined) return { status: 200, body: this.batches.get(earlier)?.object }
    const input = this.files.get(asked.input_file_id)
    if (input === undefined) return apiError(404, 'file_not_found', 'There is no such file.')
    const lines = input.content.toString().split('\n').filter(Boolean)
    const object: BatchObject = {
      id: `batch_${this.batches.size + 1}`,
      object: 'batch',
      name: 'requests.jsonl',
      endpoint: '/v1/chat/completions',
      status: 'validating',
      input_file_id: asked.input_file_id,
      output_file_id: null,
      error_file_id: null,
      completion_window: asked.completion_window,
      not_run: 0,
      request_counts: { total: lines.length, completed: 0, failed: 0 },
      cost_usd: 0,
      region: 'local',
      created: 1_700_000_000,
      created_at: 1_700_000_000,
      expires_at: 1_700_086_400,
      metadata: asked.metadata ?? {},
      ...(asked.dedupe === undefined ? {} : { dedupe: asked.dedupe }),
      ...(asked.order === undefined ? {} : { order: asked.order }),
      ...(asked.reask === undefined ? {} : { reask: asked.reask }),
    }
    this.batches.set(object.id, { object, looks: 0 })
    this.#keys.set(key, object.id)
    return { status: 200, body: object }
  }

  #look(id: string): Reply {
    const batch = this.batches.get(id)
    if (batch === undefined) return apiError(404, 'batch_not_found', 'There is no such batch.')
    const statuses = this.script.statuses ?? ['completed']
    const status = statuses[Math.min(batch.looks++, statuses.length - 1)] ?? 'completed'
    batch.object.status = status
    if (status === 'completed' || status === 'failed') this.#finish(batch.object)
    return { status: 200, body: batch.object }
  }

  #finish(batch: BatchObject): void {
    if (batch.output_file_id !== null || batch.error_file_id !== null) return
    const lines = this.files.get(batch.input_file_id)?.content.toString().split('\n').filter(Boolean) ?? []
    const answers: string[] = []
    const errors: string[] = []
    for (const line of lines) {
      const { custom_id }: { custom_id: string } = JSON.parse(line)
      const code = this.script.fails?.[custom_id]
      if (code === undefined) answers.push(JSON.stringify({ custom_id, response: {}, error: null }))
      else errors.push(JSON.stringify({ custom_id, response: null, error: { code, message: `${code}!` } }))
    }
    const file = (rows: string[]): string | null =>
      rows.length === 0 ? null : this.addFile(Buffer.from(`${rows.join('\n')}\n`), 'results').id
    batch.output_file_id = file(answers)
    batch.error_file_id = file(errors)
    batch.request_counts = { total: lines.length, completed: answers.length, failed: errors.length }
    batch.cost_usd = answers.length * 0.001
  }
}

export function apiError(status: number, code: string, message: string, headers = {}): Reply {
  return { status, headers, body: { error: { type: 'invalid_request_error', code, message } } }
}

function content(whole: Buffer, seen: Seen): Reply {
  const from = /^bytes=(\d+)-$/.exec(seen.headers.range ?? '')?.[1]
  if (from === undefined) return { status: 200, body: whole }
  return {
    status: 206,
    headers: { 'content-range': `bytes ${from}-${whole.length - 1}/${whole.length}` },
    body: whole.subarray(Number(from)),
  }
}
