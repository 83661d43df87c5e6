// A batch API over HTTP, as OpenAI defined it and Groq, Together, Doubleword and Offpeak implement it. Some of them
// list in a bare array, some leave metadata out (a batch is then recognized by its input file), and some redirect
// downloads of results. seen-batch.ts reads their batch objects.
import { isRecord } from '../../domain/json-record.ts'
import type { BatchApi, BatchRequest, NewBatch, SeenBatch, WantedBatch } from '../batch-api/batch-api.ts'
import { BatchApiCalls, type BatchApiCallsOptions, oldestFirst } from './batch-api-calls.ts'
import { notUnderstood } from './batch-api-failure.ts'
import { createdMs, idOf, isUsable } from './seen-batch.ts'

interface HttpBatchApiOptions extends BatchApiCallsOptions {
  completion_window: string
  /** The `purpose` of uploaded files; null: the default of the batch API. */
  file_purpose: string | null
  lineMetadata: boolean
}

/** The key of a batch's metadata that holds its name. */
const NAME_KEY = 'offpeak_remote_batch'
const LINE_END = Buffer.from('}\n')

export class HttpBatchApi extends BatchApiCalls implements BatchApi {
  readonly #options: HttpBatchApiOptions

  constructor(options: HttpBatchApiOptions) {
    super(options, {
      path: '/batches',
      headers: (api_key): Record<string, string> =>
        api_key === null ? {} : { authorization: `Bearer ${api_key}` },
      cursor: 'after',
    })
    this.#options = options
  }

  get #purpose(): string {
    return this.#options.file_purpose ?? this.dialect.file_purpose
  }

  get lineMetadata(): boolean {
    return this.#options.lineMetadata
  }

  async upload(name: string, requests: readonly BatchRequest[], signal?: AbortSignal): Promise<string> {
    const { upload_path, upload_fields } = this.dialect
    const filename = fileName(name)
    const { FormData } = await import('undici')
    const body = new FormData()
    const fields = { purpose: this.#purpose, ...upload_fields(filename) }
    for (const [key, value] of Object.entries(fields)) body.append(key, value)
    body.append('file', new Blob([fileOf(requests)], { type: 'application/jsonl' }), filename)
    const { json } = await this.call('POST', upload_path, { body, signal })
    const id = isRecord(json) ? idOf(json.id) : null
    if (id === null) throw notUnderstood('an uploaded file without an ID')
    return id
  }

  async findFile(name: string, signal?: AbortSignal): Promise<string | null> {
    for await (const page of this.pages(`/files`, { purpose: this.#purpose }, signal))
      for (const { id, filename, FileName } of page ?? [])
        if ((filename ?? FileName) === fileName(name) && typeof id === 'string' && isUsable(id)) return id
    return null
  }

  async create({ name, file_id, endpoint, metadata }: NewBatch, signal?: AbortSignal): Promise<SeenBatch> {
    const order = {
      input_file_id: file_id,
      endpoint,
      completion_window: this.#options.completion_window,
      metadata: { ...metadata, [NAME_KEY]: name },
    }
    return await this.createBatch(name, Buffer.from(JSON.stringify(order)), signal)
  }

  async find({ name, file_id, since }: WantedBatch, signal?: AbortSignal): Promise<SeenBatch[] | null> {
    const found: { at: number; batch: SeenBatch }[] = []
    for await (const listed of this.batchesSince(since, signal)) {
      if (listed === null) return null
      const whole = await this.#whole(listed, signal)
      const { metadata, input_file_id } = whole
      const isNamed = isRecord(metadata) && metadata[NAME_KEY] === name
      const batch = isNamed || (file_id !== null && input_file_id === file_id) ? this.seen(whole) : null
      if (batch) found.push({ at: createdMs(whole) ?? -found.length, batch })
    }
    return oldestFirst(found)
  }

  /** Reads the batch of a list's entry where the entry has too few fields to recognise it. */
  async #whole(listed: Record<string, unknown>, signal?: AbortSignal): Promise<Record<string, unknown>> {
    const { id, metadata, input_file_id } = listed
    if (isRecord(metadata) || input_file_id !== undefined) return listed
    if (typeof id !== 'string' || !isUsable(id)) return listed
    const { json } = await this.call('GET', this.pathOf(id), { signal, or: [404] })
    return isRecord(json) ? json : listed
  }

  lines(file_id: string, signal?: AbortSignal): AsyncIterable<Buffer> {
    return this.linesAt(`/files/${encodeURIComponent(file_id)}/content`, signal)
  }

  remove(file_id: string, signal?: AbortSignal): Promise<void> {
    return this.removeAt(`/files/${encodeURIComponent(file_id)}`, signal)
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
