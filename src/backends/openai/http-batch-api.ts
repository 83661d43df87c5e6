// A batch API over HTTP, as OpenAI defined it and Groq, Together, Doubleword and Offpeak speak it. Their differences as
// far as they matter: some list in a bare array, some leave metadata out, so that a batch is recognised by its input file
// as well, some redirect to where results lie. seen-batch.ts has those of a batch.
import type { BatchApi, BatchRequest, NewBatch, SeenBatch, WantedBatch } from '../batch-api/batch-api.ts'
import { isRecord } from '../json-record.ts'
import { BatchApiCalls, type BatchApiCallsOptions, oldestFirst } from './batch-api-calls.ts'
import { notUnderstood } from './batch-api-failure.ts'
import { createdMs, idOf, seenBatch } from './seen-batch.ts'

interface HttpBatchApiOptions extends BatchApiCallsOptions {
  completion_window: string
  /** Null: as the batch API has it. */
  file_purpose: string | null
  lineMetadata: boolean
  keepFiles: boolean
}

/** The key of its metadata that names a batch. */
const NAME_KEY = 'offpeak_remote_batch'
const LINE_END = Buffer.from('}\n')

export class HttpBatchApi implements BatchApi {
  readonly listPath = '/batches'
  readonly #options: HttpBatchApiOptions
  readonly #calls: BatchApiCalls
  readonly #dialect: BatchApiDialect

  constructor(options: HttpBatchApiOptions) {
    this.#options = options
    this.#dialect = dialectOf(options.base_url)
    this.#calls = new BatchApiCalls(options, {
      headers: (api_key): Record<string, string> =>
        api_key === null ? {} : { authorization: `Bearer ${api_key}` },
      cursor: 'after',
    })
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

  async upload(name: string, requests: readonly BatchRequest[], signal?: AbortSignal): Promise<string> {
    const { upload_path, upload_fields } = this.#dialect
    const filename = fileName(name)
    const { FormData } = await import('undici')
    const body = new FormData()
    const fields = { purpose: this.#purpose, ...upload_fields(filename) }
    for (const [key, value] of Object.entries(fields)) body.append(key, value)
    body.append('file', new Blob([fileOf(requests)], { type: 'application/jsonl' }), filename)
    const { json } = await this.#calls.call('POST', upload_path, { body, signal })
    const id = isRecord(json) ? idOf(json.id) : null
    if (id === null) throw notUnderstood('an uploaded file without an ID')
    return id
  }

  hasList(): Promise<boolean> {
    return this.#calls.hasList(this.listPath)
  }

  async findFile(name: string, signal?: AbortSignal): Promise<string | null> {
    for await (const page of this.#calls.pages(`/files`, { purpose: this.#purpose }, signal))
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
    const { json } = await this.#calls.call('POST', '/batches', { body, headers, signal })
    const seen = this.#seen(json)
    if (seen === null) throw notUnderstood('a created batch without an ID')
    return seen
  }

  async find({ name, file_id, since }: WantedBatch, signal?: AbortSignal): Promise<SeenBatch[] | null> {
    const found: { at: number; batch: SeenBatch }[] = []
    for await (const listed of this.#calls.batchesSince('/batches', since, signal)) {
      if (listed === null) return null
      const whole = await this.#whole(listed, signal)
      const { metadata, input_file_id } = whole
      const isNamed = isRecord(metadata) && metadata[NAME_KEY] === name
      const batch = isNamed || (file_id !== null && input_file_id === file_id) ? this.#seen(whole) : null
      if (batch) found.push({ at: createdMs(whole) ?? -found.length, batch })
    }
    return oldestFirst(found)
  }

  /** What a list says of a batch, or the batch itself where that is not enough to recognise it. */
  async #whole(listed: Record<string, unknown>, signal?: AbortSignal): Promise<Record<string, unknown>> {
    const { id, metadata, input_file_id } = listed
    if (isRecord(metadata) || input_file_id !== undefined || typeof id !== 'string') return listed
    const { json } = await this.#calls.call('GET', `/batches/${encodeURIComponent(id)}`, {
      signal,
      or: [404],
    })
    return isRecord(json) ? json : listed
  }

  async read(id: string, signal?: AbortSignal): Promise<SeenBatch | null> {
    const { status, json } = await this.#calls.call('GET', `/batches/${encodeURIComponent(id)}`, {
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
    await this.#calls.call('POST', `/batches/${encodeURIComponent(id)}/cancel`, { signal, or })
  }

  lines(file_id: string, signal?: AbortSignal): AsyncIterable<Buffer> {
    return this.#calls.lines(`/files/${encodeURIComponent(file_id)}/content`, signal)
  }

  async remove(file_id: string): Promise<void> {
    if (this.#options.keepFiles) return
    await this.#calls.call('DELETE', `/files/${encodeURIComponent(file_id)}`, { or: [404] })
  }

  close(): Promise<void> {
    return this.#calls.close()
  }

  #seen(json: unknown): SeenBatch | null {
    return seenBatch(json, (text) => this.#calls.redact(text))
  }
}

function fileOf(requests: readonly BatchRequest[]): Buffer<ArrayBuffer> {
  return Buffer.concat(
    requests.flatMap(({ custom_id, endpoint, metadata, body }) => {
      const more = metadata === null ? '' : `"metadata":${JSON.stringify(metadata)},`
      const head = `{"custom_id":"${custom_id}","method":"POST","url":"${endpoint}",${more}"body":`
      return [Buffer.from(head), body, LINE_END]
    }),
  )
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
const HOSTED: BatchApiDialect = { ...OPENAI, pollMsMin: 5_000 }

const DIALECTS: Readonly<Record<string, BatchApiDialect>> = {
  'api.openai.com': HOSTED,
  'api.groq.com': HOSTED,
  'api.doubleword.ai': HOSTED,
  'api.anthropic.com': HOSTED,
  'api.together.ai': TOGETHER,
  'api.together.xyz': TOGETHER,
}

/** Another Offpeak, and whatever is not known, speaks as OpenAI does. */
export function dialectOf(base_url: string): BatchApiDialect {
  return DIALECTS[new URL(base_url).hostname] ?? OPENAI
}
