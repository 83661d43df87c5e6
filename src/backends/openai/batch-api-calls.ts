// The HTTP calls that all batch APIs have. Each call has a limit of time and of bytes; only downloads of results follow
// redirects, and only to addresses that the configuration names.
import type { Readable } from 'node:stream'
import type { Dispatcher, FormData } from 'undici'
import { systemClock } from '../../domain/clock.ts'
import type { Certificates } from '../../domain/credentials.ts'
import { gathered, readWhole } from '../../domain/gathered-bytes.ts'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import { jsonLines } from '../../jsonl/byte-lines.ts'
import type { BatchApiError, SeenBatch } from '../batch-api/batch-api.ts'
import type { SecretFiles } from '../secret-files.ts'
import { secretsOf } from '../verdict/redact.ts'
import { brokenCall, notUnderstood, refusedCall, tooSlow } from './batch-api-failure.ts'
import { createdMs, seenBatch } from './seen-batch.ts'
import { type ServerAddress, serverAddressOf } from './server-address.ts'

export interface BatchApiCallsOptions {
  base_url: string
  api_key: string | null
  /** The file of the API key, in place of `api_key`. */
  keyFile: SecretFiles<string> | null
  certificates: () => Certificates
  proxy: string | null
  headers: Readonly<Record<string, string>>
  /** The longest time of a call; in a download, the longest wait for the next bytes. */
  timeout_ms: number
  /** Origins, beside the batch API's own, to which downloads of results may be redirected. */
  resultsFrom: readonly string[]
  /** Whether uploaded files are kept at the batch API. */
  keepFiles: boolean
  now: () => number
}

/** The form of the calls of a batch API. */
interface CallForm {
  /** The path of the batch API's list of batches. */
  path: string
  /** The headers of every call, by names in lower case; configured headers win. The key is null where there is none. */
  headers: (api_key: string | null) => Readonly<Record<string, string>>
  /** The parameter of a list that names the last entry of the previous page. */
  cursor: string
  /** Converts a batch to the field names of OpenAI, where the batch API has others. */
  shape?: (batch: Record<string, unknown>) => Record<string, unknown>
}

const PAGE = 100
/** The most pages of a list that are searched for a batch or a file. */
const PAGES_MAX = 500
/** The largest skew between a provider's clock and ours. */
const SKEW_MS = 24 * 3_600_000
const REDIRECTS_MAX = 5
const REDIRECTS = [301, 302, 303, 307, 308]
/** Statuses of a path that does not exist or cannot be read. */
const NO_PATH = [404, 405, 501]

interface Answer {
  status: number
  json: unknown
}

interface CallOptions {
  body?: Buffer | FormData
  headers?: Readonly<Record<string, string>>
  signal?: AbortSignal | undefined
  search?: URLSearchParams
  /** HTTP statuses of a call that are accepted beside success. */
  or?: readonly number[]
}

export abstract class BatchApiCalls {
  readonly #options: BatchApiCallsOptions
  readonly #form: CallForm
  readonly #address: ServerAddress
  /** The HTTP client and its certificates, loaded for the first call: the client takes 20 MiB. */
  #opened: { certificates: Certificates; dispatcher: Promise<Dispatcher> } | null = null
  /** The HTTP client for other origins of results: without the client certificate. */
  #elsewhere: Promise<Dispatcher> | null = null

  readonly listPath: string
  readonly settleMs: number
  protected readonly dialect: BatchApiDialect

  constructor(options: BatchApiCallsOptions, form: CallForm) {
    this.#options = options
    this.#form = form
    this.listPath = form.path
    this.settleMs = 2 * options.timeout_ms
    this.dialect = dialectOf(options.base_url)
    this.#address = serverAddressOf(options.base_url)
  }

  async close(): Promise<void> {
    await (await this.#opened?.dispatcher)?.destroy()
    await (await this.#elsewhere)?.destroy()
  }

  get pollMsMin(): number {
    return this.dialect.pollMsMin
  }

  /** Whether the batch API can list its batches. Throws as any call does. */
  async hasList(): Promise<boolean> {
    const { value } = await this.pages(this.listPath, {}).next()
    return Array.isArray(value)
  }

  async read(id: string, signal?: AbortSignal): Promise<SeenBatch | null> {
    const { status, json } = await this.call('GET', this.pathOf(id), { signal, or: [404] })
    return status === 404 ? null : this.#batch(json, 'something else than a batch')
  }

  async cancel(id: string, signal?: AbortSignal): Promise<void> {
    // A batch that has ended rejects its cancellation with one of these statuses.
    await this.call('POST', `${this.pathOf(id)}/cancel`, { signal, or: [400, 404, 409, 422] })
  }

  protected async createBatch(name: string, body: Buffer, signal?: AbortSignal): Promise<SeenBatch> {
    const headers = {
      'content-type': 'application/json',
      // These headers make another Offpeak answer a repeated call with the same batch.
      'idempotency-key': name,
      'idempotency-mode': 'replay',
    }
    const { json } = await this.call('POST', this.listPath, { body, headers, signal })
    return this.#batch(json, 'a created batch without an ID')
  }

  protected async removeAt(path: string, signal?: AbortSignal): Promise<void> {
    if (!this.#options.keepFiles) await this.call('DELETE', path, { signal, or: [404] })
  }

  protected pathOf(id: string): string {
    return `${this.listPath}/${encodeURIComponent(id)}`
  }

  /** Reads a batch; null for JSON that is no batch. */
  protected seen(json: unknown): SeenBatch | null {
    const { shape } = this.#form
    return seenBatch(shape && isRecord(json) ? shape(json) : json, (text) => this.redact(text))
  }

  #batch(json: unknown, otherwise: string): SeenBatch {
    const batch = this.seen(json)
    if (batch === null) throw notUnderstood(otherwise)
    return batch
  }

  /** Lists the batches that are not older than `since` (Unix ms); null where the batch API has no list. */
  protected async *batchesSince(
    since: number,
    signal?: AbortSignal,
  ): AsyncGenerator<Record<string, unknown> | null> {
    const isOld = (batch: Record<string, unknown>): boolean =>
      (createdMs(batch) ?? Number.POSITIVE_INFINITY) < since - SKEW_MS
    for await (const page of this.pages(this.listPath, {}, signal)) {
      if (page === null) return yield null
      for (const listed of page) if (!isOld(listed)) yield listed
      const times = page.map(createdMs)
      const isNewestFirst = (times[0] ?? 0) > (times.at(-1) ?? Number.POSITIVE_INFINITY)
      if (isNewestFirst && page.every(isOld)) return
    }
  }

  /** Reads the lines of a file of results. */
  protected async *linesAt(path: string, signal?: AbortSignal): AsyncGenerator<Buffer> {
    const answer = await this.#followed(await this.#send('GET', path, { signal }), signal)
    if (answer.statusCode !== 200) throw await this.#refused(answer)
    try {
      const body = atLeastSpeed(gathered(answer.body), this.#options.timeout_ms)
      for await (const { line } of jsonLines(body, LINE_BYTES_MAX)) yield line
    } catch (error) {
      throw this.#broken(error)
    }
  }

  /**
   * Follows the redirects of an answer, only to origins that the configuration allows. Credentials go to the batch API
   * alone.
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
      const isOwn = to?.origin === this.#address.origin
      if (to === null || !(isOwn || this.#options.resultsFrom.includes(to.origin)))
        throw notUnderstood(
          'a redirect that is not followed',
          to === null ? '' : ` to ${to.origin}: where results may be there, name it in results_from`,
        )
      const { ca } = this.#options.certificates()
      if (!isOwn) this.#elsewhere ??= dispatcherOf(this.#options, ca ? { ca } : {})
      const dispatcher = await (isOwn ? this.#dispatcher() : this.#elsewhere)
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

  /** Reads the pages of a list; null where the batch API has no list. Throws beyond PAGES_MAX pages. */
  protected async *pages(
    path: string,
    query: Readonly<Record<string, string>>,
    signal?: AbortSignal,
  ): AsyncGenerator<Record<string, unknown>[] | null> {
    const seen = new Set<unknown>()
    let after: string | null = null
    for (let page = 0; page < PAGES_MAX; page++) {
      const more: Record<string, string> = after === null ? {} : { [this.#form.cursor]: after }
      const search = new URLSearchParams({ ...query, limit: String(PAGE), ...more })
      const { status, json } = await this.call('GET', path, { signal, search, or: NO_PATH })
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

  /** Calls the batch API. Returns an answer of success or with one of the statuses `or`. */
  protected async call(
    method: 'GET' | 'POST' | 'DELETE',
    path: string,
    options: CallOptions,
  ): Promise<Answer> {
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
    const { request } = await import('undici')
    try {
      const dispatcher = await this.#dispatcher()
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

  protected redact(text: string): string {
    return secretsOf([this.#key(), ...Object.values(this.#options.headers)]).redact(text)
  }

  /** The HTTP client; a new one after the certificates were replaced. Calls of the previous client end first. */
  #dispatcher(): Promise<Dispatcher> {
    const before = this.#opened
    const certificates = this.#options.certificates()
    if (before?.certificates === certificates) return before.dispatcher
    // The calls of a client that could not be made have failed.
    before?.dispatcher.then((old) => old.close()).catch(() => {})
    this.#opened = { certificates, dispatcher: dispatcherOf(this.#options, certificates) }
    return this.#opened.dispatcher
  }

  #headers(): Record<string, string> {
    const own = Object.entries(this.#options.headers).map(([name, value]) => [name.toLowerCase(), value])
    return { accept: '*/*', ...this.#form.headers(this.#key()), ...Object.fromEntries(own) }
  }

  #key(): string | null {
    const { keyFile, api_key } = this.#options
    return keyFile ? keyFile.read() : api_key
  }

  async #refused(answer: Dispatcher.ResponseData): Promise<BatchApiError> {
    const { timeout_ms, now } = this.#options
    const { text } = await readText(answer.body, ERROR_BYTES_MAX, timeout_ms).catch(() => ({ text: '' }))
    return refusedCall(answer, text, (said) => this.redact(said), now())
  }

  #broken(error: unknown): BatchApiError {
    return brokenCall(error, (text) => this.redact(text))
  }
}

async function dispatcherOf(
  { timeout_ms, proxy }: BatchApiCallsOptions,
  certificates: Certificates,
): Promise<Dispatcher> {
  const { Agent, ProxyAgent } = await import('undici')
  const connect = { ...certificates, timeout: Math.min(timeout_ms, 10_000) }
  const timeouts = { headersTimeout: timeout_ms, bodyTimeout: timeout_ms }
  return proxy === null
    ? new Agent({ connect, ...timeouts })
    : new ProxyAgent({ uri: proxy, requestTls: connect, ...timeouts })
}

/** Sorts by `at`: the time of creation (Unix ms), or a number that falls along the list. Lists have newer first. */
export function oldestFirst(found: readonly { at: number; batch: SeenBatch }[]): SeenBatch[] {
  return found
    .toReversed()
    .sort((a, b) => a.at - b.at)
    .map(({ batch }) => batch)
}

// Bounds what servers answer to calls other than lines: in bytes, in time, and by the slowest speed of a transfer.

/** The largest size of lists and single objects in bytes. */
export const JSON_BYTES_MAX = 8 * 1024 * 1024
/** The most bytes of an error that are read. */
const ERROR_BYTES_MAX = 64 * 1024
/** The slowest speed of a download that is accepted, as a mean over the longest wait. */
const LEAST_BYTES_PER_S = 1024

/** Reads the text of a body, up to `bytes_max`. Throws after `ms_max`. */
export async function readText(
  body: Readable,
  bytes_max: number,
  ms_max: number,
): Promise<{ text: string; isWhole: boolean }> {
  const cancel = systemClock.after(ms_max, () => body.destroy(tooSlow()))
  try {
    const { bytes, isWhole } = await readWhole(body, bytes_max)
    return { text: bytes.toString(), isWhole }
  } finally {
    cancel()
  }
}

/** Passes a body of any size on. Throws where it arrives too slowly; the time that its reader takes does not count. */
async function* atLeastSpeed(body: AsyncIterable<Uint8Array>, periodMs: number): AsyncGenerator<Uint8Array> {
  let waitedMs = 0
  let bytes = 0
  let from = systemClock.steady()
  for await (const piece of body) {
    waitedMs += systemClock.steady() - from
    bytes += piece.length
    if (waitedMs >= periodMs) {
      if (bytes < (waitedMs / 1000) * LEAST_BYTES_PER_S) throw tooSlow()
      waitedMs = 0
      bytes = 0
    }
    yield piece
    from = systemClock.steady()
  }
}

/** The longest line of results in bytes: a longer line is no result, and is cut. */
const LINE_BYTES_MAX = 64 * 1024 * 1024

// Hosted batch APIs differ from OpenAI's, as their documentation said on 2026-11-22. docs/batch-apis.md lists the
// differences for readers.

interface BatchApiDialect {
  /** The `purpose` of files that are uploaded to the batch API. */
  file_purpose: string
  upload_path: string
  /** Fields of the upload's form beside `purpose` and `file`. */
  upload_fields: (filename: string) => Readonly<Record<string, string>>
  /** The shortest time between two polls of a batch (ms). */
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
  // Its documentation asks for half a minute to a minute.
  pollMsMin: 30_000,
}
/** The dialect of hosted providers, which count polls against rate limits; their batches take minutes at least. */
const HOSTED: BatchApiDialect = { ...OPENAI, pollMsMin: 5_000 }

const DIALECTS: Readonly<Record<string, BatchApiDialect>> = {
  'api.openai.com': HOSTED,
  'api.groq.com': HOSTED,
  'api.doubleword.ai': HOSTED,
  'api.anthropic.com': HOSTED,
  'api.together.ai': TOGETHER,
  'api.together.xyz': TOGETHER,
}

/** The dialect of a batch API by its address; OpenAI's for Offpeak and for unknown addresses. */
export function dialectOf(base_url: string): BatchApiDialect {
  return DIALECTS[new URL(base_url).hostname] ?? OPENAI
}
