// A batch API over HTTP, as OpenAI defined it and Groq, Together, Doubleword and Offpeak speak it. Their differences as
// far as they matter: some list in a bare array, some leave metadata out, so that a batch is recognised by its input file
// as well, some redirect to where results lie. seen-batch.ts has those of a batch.
import type { Dispatcher, FormData } from 'undici'
import type { BatchApi, BatchApiError, NewBatch, SeenBatch } from '../batch-api/batch-api.ts'
import { isRecord, parsedJson } from '../json-record.ts'
import { secretsOf } from '../verdict/redact.ts'
import { brokenCall, notUnderstood, refusedCall } from './batch-api-failure.ts'
import { KeyFile } from './key-file.ts'
import { atLeastSpeed, ERROR_BYTES_MAX, JSON_BYTES_MAX, linesOf, readText } from './read-body.ts'
import { createdMs, idOf, seenBatch } from './seen-batch.ts'
import { type ServerAddress, serverAddressOf } from './server-address.ts'

interface HttpBatchApiOptions {
  base_url: string
  api_key: string | null
  api_key_file: string | null
  certificates: { ca?: Buffer; cert?: Buffer; key?: Buffer }
  proxy: string | null
  headers: Readonly<Record<string, string>>
  /** The longest a call may take; of a download, the longest wait for its next bytes. */
  timeout_ms: number
  completion_window: string
  /** Null: as the batch API has it. */
  file_purpose: string | null
  lineMetadata: boolean
  keepFiles: boolean
  /** Origins beside its own that it may redirect to for results. */
  resultsFrom: readonly string[]
  now: () => number
}

/** The key of its metadata that names a batch. */
const NAME_KEY = 'offpeak_remote_batch'
const PAGE = 100
/** Pages that are looked through for a batch or a file at most. */
const PAGES_MAX = 500
/** Clocks of providers may differ from ours by so much. */
const SKEW_MS = 24 * 3_600_000
const REDIRECTS_MAX = 5
const REDIRECTS = [301, 302, 303, 307, 308]
/** There is no such path, or nothing to read there. */
const NO_PATH = [404, 405, 501]

interface Answer {
  status: number
  json: unknown
}

export class HttpBatchApi implements BatchApi {
  readonly #options: HttpBatchApiOptions
  readonly #address: ServerAddress
  /** Loaded for the first call: the client takes 20 MiB. */
  #dispatcher: Promise<Dispatcher> | null = null
  /** For the other origins that results are read from: without the client certificate. */
  #elsewhere: Promise<Dispatcher> | null = null
  readonly #keyFile: KeyFile | null
  readonly #dialect: BatchApiDialect

  constructor(options: HttpBatchApiOptions) {
    this.#options = options
    this.#address = serverAddressOf(options.base_url)
    this.#dialect = dialectOf(options.base_url)
    this.#keyFile = options.api_key_file === null ? null : new KeyFile(options.api_key_file)
  }

  get #purpose(): string {
    return this.#options.file_purpose ?? this.#dialect.file_purpose
  }

  get pollMsMin(): number {
    return this.#dialect.pollMsMin
  }

  get lineMetadata(): boolean {
    return this.#options.lineMetadata
  }

  get settleMs(): number {
    return 2 * this.#options.timeout_ms
  }

  async upload(name: string, content: readonly Uint8Array[], signal?: AbortSignal): Promise<string> {
    const { upload_path, upload_fields } = this.#dialect
    const filename = fileName(name)
    const { FormData } = await import('undici')
    const body = new FormData()
    const fields = { purpose: this.#purpose, ...upload_fields(filename) }
    for (const [key, value] of Object.entries(fields)) body.append(key, value)
    body.append('file', new Blob([Buffer.concat(content)], { type: 'application/jsonl' }), filename)
    const { json } = await this.#call('POST', upload_path, { body, signal })
    const id = isRecord(json) ? idOf(json.id) : null
    if (id === null) throw notUnderstood('an uploaded file without an ID')
    return id
  }

  /** Whether it lists batches; throws as any call does. */
  async hasList(): Promise<boolean> {
    const { value } = await this.#pages('/batches', {}).next()
    return Array.isArray(value)
  }

  async findFile(name: string, signal?: AbortSignal): Promise<string | null> {
    for await (const page of this.#pages(`/files`, { purpose: this.#purpose }, signal))
      for (const { id, filename, FileName } of page ?? [])
        if ((filename ?? FileName) === fileName(name)) return idOf(id)
    return null
  }

  async create({ name, file_id, endpoint, metadata }: NewBatch, signal?: AbortSignal): Promise<SeenBatch> {
    const order = {
      input_file_id: file_id,
      endpoint,
      completion_window: this.#options.completion_window,
      metadata: { ...metadata, [NAME_KEY]: name },
    }
    const headers = {
      'content-type': 'application/json',
      'idempotency-key': name,
      'idempotency-mode': 'replay',
    }
    const body = Buffer.from(JSON.stringify(order))
    const { json } = await this.#call('POST', '/batches', { body, headers, signal })
    const seen = this.#seen(json)
    if (seen === null) throw notUnderstood('a created batch without an ID')
    return seen
  }

  async find(
    { name, file_id, since }: { name: string; file_id: string | null; since: number },
    signal?: AbortSignal,
  ): Promise<SeenBatch[] | null> {
    const isOld = (batch: Record<string, unknown>): boolean =>
      (createdMs(batch) ?? Number.POSITIVE_INFINITY) < since - SKEW_MS
    const found = new Map<string, { at: number; batch: SeenBatch }>()
    for await (const page of this.#pages('/batches', {}, signal)) {
      if (page === null) return null
      for (const listed of page) {
        if (isOld(listed)) continue
        const whole = await this.#whole(listed, signal)
        const { metadata, input_file_id } = whole
        const isNamed = isRecord(metadata) && metadata[NAME_KEY] === name
        const batch = isNamed || (file_id !== null && input_file_id === file_id) ? this.#seen(whole) : null
        // Of equal times, the one that is listed last is the oldest.
        if (batch) found.set(batch.id, { at: createdMs(whole) ?? -found.size, batch })
      }
      const times = page.map(createdMs)
      const isNewestFirst = (times[0] ?? 0) > (times.at(-1) ?? Number.POSITIVE_INFINITY)
      if (isNewestFirst && page.every(isOld)) break
    }
    return [...found.values()]
      .reverse()
      .sort((a, b) => a.at - b.at)
      .map(({ batch }) => batch)
  }

  /** What a list says of a batch, or the batch itself where that is not enough to recognise it. */
  async #whole(listed: Record<string, unknown>, signal?: AbortSignal): Promise<Record<string, unknown>> {
    const { id, metadata, input_file_id } = listed
    if (isRecord(metadata) || input_file_id !== undefined || typeof id !== 'string') return listed
    const { json } = await this.#call('GET', `/batches/${encodeURIComponent(id)}`, { signal, or: [404] })
    return isRecord(json) ? json : listed
  }

  async read(id: string, signal?: AbortSignal): Promise<SeenBatch | null> {
    const { status, json } = await this.#call('GET', `/batches/${encodeURIComponent(id)}`, {
      signal,
      or: [404],
    })
    if (status === 404) return null
    const seen = this.#seen(json)
    if (seen === null) throw notUnderstood('something else than a batch')
    return seen
  }

  async cancel(id: string, signal?: AbortSignal): Promise<void> {
    // A batch that has ended is refused, in whatever words.
    const or = [400, 404, 409, 422]
    await this.#call('POST', `/batches/${encodeURIComponent(id)}/cancel`, { signal, or })
  }

  async *lines(file_id: string, signal?: AbortSignal): AsyncGenerator<Buffer> {
    const path = `/files/${encodeURIComponent(file_id)}/content`
    const answer = await this.#followed(await this.#send('GET', path, { signal }), signal)
    if (answer.statusCode !== 200) throw await this.#refused(answer)
    try {
      yield* linesOf(atLeastSpeed(answer.body, this.#options.timeout_ms))
    } catch (error) {
      throw this.#broken(error)
    }
  }

  /**
   * Goes where an answer redirects to, which is no other place than the configuration allows: a batch API must not choose
   * what is called from here. What this service is known by stays with the batch API.
   */
  async #followed(answer: Dispatcher.ResponseData, signal?: AbortSignal): Promise<Dispatcher.ResponseData> {
    let from = new URL(this.#address.origin)
    for (let hops = 0; hops < REDIRECTS_MAX; hops++) {
      const { location } = answer.headers
      if (!REDIRECTS.includes(answer.statusCode) || typeof location !== 'string') break
      await readText(answer.body, 0, this.#options.timeout_ms).catch((error) =>
        Promise.reject(this.#broken(error)),
      )
      const to = URL.parse(location, from)
      const { certificates, resultsFrom } = this.#options
      const isOwn = to?.origin === this.#address.origin
      if (to === null || !(isOwn || resultsFrom.includes(to.origin)))
        throw notUnderstood(
          'a redirect that is not followed',
          to === null ? '' : ` to ${to.origin}: where results may be there, name it in results_from`,
        )
      if (!isOwn)
        this.#elsewhere ??= dispatcherOf({
          ...this.#options,
          certificates: certificates.ca ? { ca: certificates.ca } : {},
        })
      const dispatcher = await (isOwn ? this.#dispatcher : this.#elsewhere)
      const { request } = await import('undici')
      try {
        answer = await request(to, {
          ...(dispatcher ? { dispatcher } : {}),
          headers: isOwn ? this.#headers() : { accept: '*/*' },
          ...(signal === undefined ? {} : { signal }),
        })
      } catch (error) {
        throw this.#broken(error)
      }
      from = to
    }
    return answer
  }

  async remove(file_id: string): Promise<void> {
    if (this.#options.keepFiles) return
    await this.#call('DELETE', `/files/${encodeURIComponent(file_id)}`, { or: [404] })
  }

  async close(): Promise<void> {
    await (await this.#dispatcher)?.destroy()
    await (await this.#elsewhere)?.destroy()
  }

  /** Null for a list that is not there. A page that does not end is the last one. */
  async *#pages(
    path: string,
    query: Readonly<Record<string, string>>,
    signal?: AbortSignal,
  ): AsyncGenerator<Record<string, unknown>[] | null> {
    const seen = new Set<unknown>()
    let after: string | null = null
    for (let page = 0; page < PAGES_MAX; page++) {
      const more: Record<string, string> = after === null ? {} : { after }
      const search = new URLSearchParams({ ...query, limit: String(PAGE), ...more })
      const { status, json } = await this.#call('GET', path, { signal, search, or: NO_PATH })
      if (NO_PATH.includes(status)) return yield null
      const data: unknown = isRecord(json) ? json.data : json
      if (!Array.isArray(data)) throw notUnderstood('something else than a list')
      const items = data.filter(isRecord).filter(({ id }) => !seen.has(id))
      for (const { id } of items) seen.add(id)
      yield items
      const last = items.at(-1)?.id
      const has_more = isRecord(json) ? (json.has_more ?? data.length >= PAGE) : data.length >= PAGE
      if (has_more !== true || typeof last !== 'string') return
      after = last
    }
    throw notUnderstood(`more than ${PAGE * PAGES_MAX} entries in a list`)
  }

  /** The answer of a call that succeeded, or that was answered with one of the statuses `or`. */
  async #call(method: 'GET' | 'POST' | 'DELETE', path: string, options: CallOptions): Promise<Answer> {
    const answer = await this.#send(method, path, options)
    const { statusCode: status, body } = answer
    if (status >= 300 && !options.or?.includes(status)) throw await this.#refused(answer)
    try {
      const { text, isWhole } = await readText(body, JSON_BYTES_MAX, this.#options.timeout_ms)
      if (!isWhole) throw notUnderstood(`more than ${JSON_BYTES_MAX / 2 ** 20} MiB`)
      return { status, json: parsedJson(text) }
    } catch (error) {
      throw this.#broken(error)
    }
  }

  async #send(
    method: 'GET' | 'POST' | 'DELETE',
    path: string,
    { body, headers, signal, search }: CallOptions,
  ): Promise<Dispatcher.ResponseData> {
    const url = new URL(this.#address.origin + this.#address.path(path))
    for (const [key, value] of search ?? []) url.searchParams.set(key, value)
    this.#dispatcher ??= dispatcherOf(this.#options)
    const dispatcher = await this.#dispatcher
    const { request } = await import('undici')
    try {
      return await request(url, {
        method,
        dispatcher,
        headers: { ...this.#headers(), ...headers },
        ...(body === undefined ? {} : { body }),
        ...(signal === undefined ? {} : { signal }),
      })
    } catch (error) {
      throw this.#broken(error)
    }
  }

  #seen(json: unknown): SeenBatch | null {
    return seenBatch(json, (text) => this.#redact(text))
  }

  #headers(): Record<string, string> {
    const api_key = this.#key()
    return {
      accept: '*/*',
      ...(api_key === null ? {} : { authorization: `Bearer ${api_key}` }),
      ...this.#options.headers,
    }
  }

  #key(): string | null {
    return this.#keyFile ? this.#keyFile.read() : this.#options.api_key
  }

  #redact(text: string): string {
    return secretsOf([this.#key(), ...Object.values(this.#options.headers)]).redact(text)
  }

  async #refused(answer: Dispatcher.ResponseData): Promise<BatchApiError> {
    const { timeout_ms, now } = this.#options
    const { text } = await readText(answer.body, ERROR_BYTES_MAX, timeout_ms).catch(() => ({ text: '' }))
    return refusedCall(answer, text, (said) => this.#redact(said), now())
  }

  #broken(error: unknown): BatchApiError {
    return brokenCall(error, (text) => this.#redact(text))
  }
}

interface CallOptions {
  body?: Buffer | FormData
  headers?: Readonly<Record<string, string>>
  signal?: AbortSignal | undefined
  search?: URLSearchParams
  /** Statuses that are no failure. */
  or?: readonly number[]
}

async function dispatcherOf({ timeout_ms, certificates, proxy }: HttpBatchApiOptions): Promise<Dispatcher> {
  const { Agent, ProxyAgent } = await import('undici')
  const connect = { ...certificates, timeout: Math.min(timeout_ms, 10_000) }
  const timeouts = { headersTimeout: timeout_ms, bodyTimeout: timeout_ms }
  return proxy === null
    ? new Agent({ connect, ...timeouts })
    : new ProxyAgent({ uri: proxy, requestTls: connect, ...timeouts })
}

function fileName(name: string): string {
  return `${name}.jsonl`
}

// Hosted batch APIs differ from OpenAI's, as their documentation said on 2026-11-22. docs/batch-apis.md lists the
// differences for readers.

interface BatchApiDialect {
  /** The `purpose` of uploaded files. */
  file_purpose: string
  upload_path: string
  /** Fields of the upload's form beside `purpose` and `file`. */
  upload_fields: (filename: string) => Readonly<Record<string, string>>
  /** How long a batch is left alone between two looks at least (ms). */
  pollMsMin: number
}

const OPENAI: BatchApiDialect = {
  file_purpose: 'batch',
  upload_path: '/files',
  upload_fields: () => ({}),
  pollMsMin: 0,
}
const TOGETHER: BatchApiDialect = {
  file_purpose: 'batch-api',
  upload_path: '/files/upload',
  upload_fields: (file_name) => ({ file_name, file_type: 'jsonl' }),
  // It asks for half a minute to a minute.
  pollMsMin: 30_000,
}
/** Providers count looks against rate limits; their batches take minutes at least. */
const HOSTED_POLL_MS = 5_000

const DIALECTS: Readonly<Record<string, BatchApiDialect>> = {
  'api.openai.com': { ...OPENAI, pollMsMin: HOSTED_POLL_MS },
  'api.groq.com': { ...OPENAI, pollMsMin: HOSTED_POLL_MS },
  'api.doubleword.ai': { ...OPENAI, pollMsMin: HOSTED_POLL_MS },
  'api.together.ai': TOGETHER,
  'api.together.xyz': TOGETHER,
}

/** Another Offpeak, and whatever is not known, speaks as OpenAI does. */
export function dialectOf(base_url: string): BatchApiDialect {
  return DIALECTS[new URL(base_url).hostname] ?? OPENAI
}
