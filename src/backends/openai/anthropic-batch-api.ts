// Anthropic's Message Batches as a batch API. A batch carries its requests itself, has one list of results, and takes no
// metadata: the custom_id of each request carries the batch's name, which only results show again. A batch whose creation
// lost its answer is therefore recognised when it has ended; until then, any unknown batch of as many requests may be it.
import { endpointOf } from '../../domain/endpoint.ts'
import {
  type BatchApi,
  BatchApiError,
  type BatchRequest,
  type NewBatch,
  type SeenBatch,
  UndecidedBatch,
  type WantedBatch,
} from '../batch-api/batch-api.ts'
import { idInBatch, readResultLine, unfinished } from '../batch-api/result-line.ts'
import { isRecord } from '../json-record.ts'
import { BatchApiCalls, type BatchApiCallsOptions, oldestFirst } from './batch-api-calls.ts'
import { notUnderstood } from './batch-api-failure.ts'
import { dialectOf } from './http-batch-api.ts'
import { createdMs, seenBatch } from './seen-batch.ts'

interface AnthropicBatchApiOptions extends BatchApiCallsOptions {
  keepFiles: boolean
}

const PATH = '/messages/batches'
/** Of batches that have ended, it is remembered whose they are. */
const NAMES_MAX = 10_000

export class AnthropicBatchApi implements BatchApi {
  readonly listPath = PATH
  readonly lineMetadata = false
  readonly pollMsMin: number
  readonly settleMs: number
  readonly #keepFiles: boolean
  readonly #calls: BatchApiCalls
  readonly #names = new Map<string, string | null>()

  constructor(options: AnthropicBatchApiOptions) {
    this.pollMsMin = dialectOf(options.base_url).pollMsMin
    this.settleMs = 2 * options.timeout_ms
    this.#keepFiles = options.keepFiles
    this.#calls = new BatchApiCalls(options, {
      headers: (api_key) => ({
        ...endpointOf('/v1/messages').headers,
        ...(api_key === null ? {} : { 'x-api-key': api_key }),
      }),
      cursor: 'after_id',
    })
  }

  hasList(): Promise<boolean> {
    return this.#calls.hasList(PATH)
  }

  async upload(): Promise<null> {
    return null
  }

  async findFile(): Promise<null> {
    return null
  }

  async create({ name, requests }: NewBatch, signal?: AbortSignal): Promise<SeenBatch> {
    const headers = {
      'content-type': 'application/json',
      // For another Offpeak.
      'idempotency-key': name,
      'idempotency-mode': 'replay',
    }
    const body = bodyOf(name, requests())
    const { json } = await this.#calls.call('POST', PATH, { body, headers, signal })
    const seen = this.#seen(json)
    if (seen === null) throw notUnderstood('a created batch without an ID')
    return seen
  }

  async find(
    { name, line_count, since, taken }: WantedBatch,
    signal?: AbortSignal,
  ): Promise<SeenBatch[] | null> {
    const found: { at: number; batch: SeenBatch }[] = []
    const undecided: string[] = []
    for await (const listed of this.#calls.batchesSince(PATH, since, signal)) {
      if (listed === null) return null
      const batch = this.#seen(listed)
      if (batch === null || countsOf(listed).total !== line_count) continue
      // One that has ended without results is none that could be recorded.
      const ended = batch.output_file_id
      const batchName = ended === null ? undefined : await this.#nameOf(ended, signal)
      if (batchName === name) found.push({ at: createdMs(listed) ?? -found.length, batch })
      else if (batchName === undefined && (batch.ended === null || ended !== null)) undecided.push(batch.id)
    }
    if (found.length === 0 && undecided.length > 0) {
      const others = await taken(undecided)
      if (undecided.some((id) => !others.has(id)))
        throw new UndecidedBatch(
          unfinished('which of the batches there it is shows only when they have ended'),
          false,
        )
    }
    return oldestFirst(found)
  }

  /** The name that the results of a batch carry; null where they carry none, undefined where they cannot be read now. */
  async #nameOf(id: string, signal?: AbortSignal): Promise<string | null | undefined> {
    const known = this.#names.get(id)
    if (known !== undefined) return known
    try {
      for await (const line of this.lines(id, signal)) {
        const read = readResultLine(line, '/v1/messages')
        if (read === null) continue
        if (this.#names.size >= NAMES_MAX) this.#names.clear()
        this.#names.set(id, read.batch)
        return read.batch
      }
    } catch (error) {
      if (!(error instanceof BatchApiError) || !error.isGone) throw error
    }
  }

  async read(id: string, signal?: AbortSignal): Promise<SeenBatch | null> {
    const { status, json } = await this.#calls.call('GET', pathOf(id), { signal, or: [404] })
    if (status === 404) return null
    const seen = this.#seen(json)
    if (seen === null) throw notUnderstood('something else than a batch')
    return seen
  }

  async cancel(id: string, signal?: AbortSignal): Promise<void> {
    // A batch that has ended is refused, in whatever words.
    await this.#calls.call('POST', `${pathOf(id)}/cancel`, { signal, or: [400, 404, 409, 422] })
  }

  /** A batch is its own file of results: their address is known, so the one that it names is not called. */
  lines(id: string, signal?: AbortSignal): AsyncIterable<Buffer> {
    return this.#calls.lines(`${pathOf(id)}/results`, signal)
  }

  async remove(id: string): Promise<void> {
    if (this.#keepFiles) return
    await this.#calls.call('DELETE', pathOf(id), { or: [404] })
  }

  close(): Promise<void> {
    return this.#calls.close()
  }

  /** Read as a batch of the other batch APIs. */
  #seen(json: unknown): SeenBatch | null {
    if (!isRecord(json)) return null
    const { id, processing_status, results_url } = json
    const { total, succeeded, errored, canceled, expired } = countsOf(json)
    const ended = expired > 0 ? 'expired' : canceled > 0 ? 'canceled' : 'completed'
    const batch = {
      id,
      status: processing_status === 'ended' ? ended : processing_status,
      request_counts: { total, completed: succeeded, failed: errored },
      output_file_id: typeof results_url === 'string' ? id : null,
    }
    return seenBatch(batch, (text) => this.#calls.redact(text))
  }
}

function pathOf(id: string): string {
  return `${PATH}/${encodeURIComponent(id)}`
}

function countsOf({ request_counts: counts }: Record<string, unknown>) {
  const count = (name: string): number => (isRecord(counts) ? Number(counts[name] ?? 0) : 0)
  const ended = {
    succeeded: count('succeeded'),
    errored: count('errored'),
    canceled: count('canceled'),
    expired: count('expired'),
  }
  const total = Object.values(ended).reduce((sum, one) => sum + one, count('processing'))
  return { ...ended, total }
}

function bodyOf(name: string, requests: readonly BatchRequest[]): Buffer {
  const pieces = requests.flatMap(({ custom_id, body }, i) => [
    Buffer.from(`${i === 0 ? '{"requests":[' : '},'}{"custom_id":"${idInBatch(custom_id, name)}","params":`),
    body,
  ])
  return Buffer.concat([...pieces, Buffer.from('}]}')])
}
