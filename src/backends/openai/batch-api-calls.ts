// Calls of batch APIs over HTTP. Each has a time limit and reads no more than a bound; redirects are followed to results
// alone, and nowhere but to the addresses that the configuration names.
import type { Dispatcher, FormData } from 'undici'
import type { BatchApiError, SeenBatch } from '../batch-api/batch-api.ts'
import { isRecord, parsedJson } from '../json-record.ts'
import { secretsOf } from '../verdict/redact.ts'
import { brokenCall, notUnderstood, refusedCall } from './batch-api-failure.ts'
import { KeyFile } from './key-file.ts'
import { atLeastSpeed, ERROR_BYTES_MAX, JSON_BYTES_MAX, linesOf, readText } from './read-body.ts'
import { createdMs } from './seen-batch.ts'
import { type ServerAddress, serverAddressOf } from './server-address.ts'

export interface BatchApiCallsOptions {
  base_url: string
  api_key: string | null
  api_key_file: string | null
  certificates: { ca?: Buffer; cert?: Buffer; key?: Buffer }
  proxy: string | null
  headers: Readonly<Record<string, string>>
  /** The longest a call may take; of a download, the longest wait for its next bytes. */
  timeout_ms: number
  /** Origins beside its own that it may redirect to for results. */
  resultsFrom: readonly string[]
  now: () => number
}

/** How a batch API wants its calls. */
interface CallForm {
  /** Of every call, by names in lower case; a configured header wins. The key is null where there is none. */
  headers: (api_key: string | null) => Readonly<Record<string, string>>
  /** The parameter of a list that names the last entry of the page before. */
  cursor: string
}

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

interface CallOptions {
  body?: Buffer | FormData
  headers?: Readonly<Record<string, string>>
  signal?: AbortSignal | undefined
  search?: URLSearchParams
  /** Statuses that are no failure. */
  or?: readonly number[]
}

export class BatchApiCalls {
  readonly #options: BatchApiCallsOptions
  readonly #form: CallForm
  readonly #address: ServerAddress
  /** Loaded for the first call: the client takes 20 MiB. */
  #dispatcher: Promise<Dispatcher> | null = null
  /** For the other origins that results are read from: without the client certificate. */
  #elsewhere: Promise<Dispatcher> | null = null
  readonly #keyFile: KeyFile | null

  constructor(options: BatchApiCallsOptions, form: CallForm) {
    this.#options = options
    this.#form = form
    this.#address = serverAddressOf(options.base_url)
    this.#keyFile = options.api_key_file === null ? null : new KeyFile(options.api_key_file)
  }

  async close(): Promise<void> {
    await (await this.#dispatcher)?.destroy()
    await (await this.#elsewhere)?.destroy()
  }

  /** Whether batches can be listed; throws as any call does. */
  async hasList(path: string): Promise<boolean> {
    const { value } = await this.pages(path, {}).next()
    return Array.isArray(value)
  }

  /** The batches of a list that are not older than `since` (Unix ms); null for a list that is not there. */
  async *batchesSince(
    path: string,
    since: number,
    signal?: AbortSignal,
  ): AsyncGenerator<Record<string, unknown> | null> {
    const isOld = (batch: Record<string, unknown>): boolean =>
      (createdMs(batch) ?? Number.POSITIVE_INFINITY) < since - SKEW_MS
    for await (const page of this.pages(path, {}, signal)) {
      if (page === null) return yield null
      for (const listed of page) if (!isOld(listed)) yield listed
      const times = page.map(createdMs)
      const isNewestFirst = (times[0] ?? 0) > (times.at(-1) ?? Number.POSITIVE_INFINITY)
      if (isNewestFirst && page.every(isOld)) return
    }
  }

  /** The lines of a file of results. */
  async *lines(path: string, signal?: AbortSignal): AsyncGenerator<Buffer> {
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

  /** Null for a list that is not there. A page that does not end is the last one. */
  async *pages(
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

  /** The answer of a call that succeeded, or that was answered with one of the statuses `or`. */
  async call(method: 'GET' | 'POST' | 'DELETE', path: string, options: CallOptions): Promise<Answer> {
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

  redact(text: string): string {
    return secretsOf([this.#key(), ...Object.values(this.#options.headers)]).redact(text)
  }

  #headers(): Record<string, string> {
    const own = Object.entries(this.#options.headers).map(([name, value]) => [name.toLowerCase(), value])
    return { accept: '*/*', ...this.#form.headers(this.#key()), ...Object.fromEntries(own) }
  }

  #key(): string | null {
    return this.#keyFile ? this.#keyFile.read() : this.#options.api_key
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

async function dispatcherOf({ timeout_ms, certificates, proxy }: BatchApiCallsOptions): Promise<Dispatcher> {
  const { Agent, ProxyAgent } = await import('undici')
  const connect = { ...certificates, timeout: Math.min(timeout_ms, 10_000) }
  const timeouts = { headersTimeout: timeout_ms, bodyTimeout: timeout_ms }
  return proxy === null
    ? new Agent({ connect, ...timeouts })
    : new ProxyAgent({ uri: proxy, requestTls: connect, ...timeouts })
}

/** `at`: when it was created (Unix ms), or less the later it was listed. Of equal times, the one that is listed last is the oldest. */
export function oldestFirst(found: readonly { at: number; batch: SeenBatch }[]): SeenBatch[] {
  return found
    .toReversed()
    .sort((a, b) => a.at - b.at)
    .map(({ batch }) => batch)
}
