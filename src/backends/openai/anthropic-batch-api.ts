// Anthropic's Message Batches as a batch API. A batch is created with its requests, has one list of results, and takes
// no metadata: the custom_id of each request carries the batch's name, which only results show. A batch whose creation
// was not answered is therefore recognized after it has ended; until then, it may be any unknown batch with the same
// number of requests.
import { BoundedMap } from '../../domain/bounded-map.ts'
import { endpointOf } from '../../domain/endpoint.ts'
import { isRecord } from '../../domain/json-record.ts'
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
import { BatchApiCalls, type BatchApiCallsOptions, oldestFirst } from './batch-api-calls.ts'
import { createdMs, isUsable } from './seen-batch.ts'

/** The number of ended batches whose names are cached. */
const NAMES_MAX = 10_000

export class AnthropicBatchApi extends BatchApiCalls implements BatchApi {
  readonly lineMetadata = false
  readonly #names = new BoundedMap<string, string | null>(NAMES_MAX)

  constructor(options: BatchApiCallsOptions) {
    super(options, {
      path: '/messages/batches',
      headers: (api_key) => ({
        ...endpointOf('/v1/messages').headers,
        ...(api_key === null ? {} : { 'x-api-key': api_key }),
      }),
      cursor: 'after_id',
      shape: shapeOf,
    })
  }

  async upload(): Promise<null> {
    return null
  }

  async findFile(): Promise<null> {
    return null
  }

  create({ name, requests }: NewBatch, signal?: AbortSignal): Promise<SeenBatch> {
    return this.createBatch(name, bodyOf(name, requests()), signal)
  }

  async find(
    { name, line_count, since, taken }: WantedBatch,
    signal?: AbortSignal,
  ): Promise<SeenBatch[] | null> {
    const found: { at: number; batch: SeenBatch }[] = []
    const undecided: string[] = []
    for await (const listed of this.batchesSince(since, signal)) {
      if (listed === null) return null
      // A batch without a usable ID cannot have been recorded.
      const batch = typeof listed.id === 'string' && isUsable(listed.id) ? this.seen(listed) : null
      const { total, succeeded, errored } = countsOf(listed)
      if (batch === null || total !== line_count) continue
      // A batch that ended without results cannot have been recorded; one that counts some may name them later.
      const ended = batch.output_file_id
      const batchName = ended === null ? undefined : await this.#nameOf(ended, signal)
      if (batchName === name) found.push({ at: createdMs(listed) ?? -found.length, batch })
      else if (batchName === undefined && (batch.ended === null || ended !== null || succeeded + errored > 0))
        undecided.push(batch.id)
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

  /** Reads the name in the results of a batch; null where they carry none, undefined where they cannot be read now. */
  async #nameOf(id: string, signal?: AbortSignal): Promise<string | null | undefined> {
    const known = this.#names.get(id)
    if (known !== undefined) return known
    try {
      for await (const line of this.lines(id, signal)) {
        const read = readResultLine(line, '/v1/messages')
        if (read === null) continue
        this.#names.set(id, read.batch)
        return read.batch
      }
    } catch (error) {
      if (!(error instanceof BatchApiError) || !error.isGone) throw error
    }
  }

  /** Reads the results of a batch from their known address rather than from the URL that the batch names. */
  lines(id: string, signal?: AbortSignal): AsyncIterable<Buffer> {
    return this.linesAt(`${this.pathOf(id)}/results`, signal)
  }

  remove(id: string, signal?: AbortSignal): Promise<void> {
    return this.removeAt(this.pathOf(id), signal)
  }
}

/** Converts a batch of Anthropic to the field names of OpenAI. */
function shapeOf(batch: Record<string, unknown>): Record<string, unknown> {
  const { id, processing_status, results_url } = batch
  const { total, succeeded, errored, canceled, expired } = countsOf(batch)
  const ended = expired > 0 ? 'expired' : canceled > 0 ? 'canceled' : 'completed'
  return {
    id,
    status: processing_status === 'ended' ? ended : processing_status,
    request_counts: { total, completed: succeeded, failed: errored },
    output_file_id: typeof results_url === 'string' ? id : null,
  }
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
