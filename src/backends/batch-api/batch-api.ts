// The port of batch APIs, at a provider or at another Offpeak. Each method makes one call, or a few calls that only
// read, and never retries: only its caller knows which calls are safe to repeat.
import type { EndpointPath } from '../../domain/endpoint.ts'
import type { BackendResult } from '../backend.ts'

/** A line that a batch API names as a reason to reject a whole file. */
export interface BlamedLine {
  /** The custom_id of the line in its file; null where the batch API names the line by its number. */
  custom_id: string | null
  /** The number of the line, from 1; null where the batch API names the line by its custom_id. */
  line: number | null
  message: string
}

export interface BatchRequest {
  custom_id: string
  endpoint: EndpointPath
  /** The metadata of the line; null where it has none, or the batch API accepts none. */
  metadata: Readonly<Record<string, unknown>> | null
  /** The body of a line's request as JSON. */
  body: Uint8Array
}

export interface NewBatch {
  /** The unique name of the batch, sent in whatever way the batch API allows. */
  name: string
  /** The input file; null where no file was uploaded, since the batch carries its requests itself. */
  file_id: string | null
  requests: () => readonly BatchRequest[]
  endpoint: EndpointPath
  /** The names of the batch and the chunk, for operators who look at the batch API. */
  metadata: Readonly<Record<string, string>>
}

/** A batch that may have been created. */
export interface WantedBatch {
  name: string
  file_id: string | null
  /** The number of requests in the wanted batch. */
  line_count: number
  /** The earliest time at which the wanted batch was created (Unix ms). */
  since: number
  /** The subset of these IDs that batches of other names are known to have. */
  taken: (ids: readonly string[]) => Promise<ReadonlySet<string>>
}

/** A batch as the batch API shows it. */
export interface SeenBatch {
  id: string
  /** The status in the words of the batch API, in lower case. */
  status: string
  /** Whether a batch's status is one of the known statuses. */
  isKnown: boolean
  /** The end of the batch: completed, failed, expired or cancelled; null while it runs. */
  ended: string | null
  /** The share of the requests that have ended, 0 to 1; 0 where the batch API does not report it. */
  done: number
  output_file_id: string | null
  error_file_id: string | null
  /** The reason of a failure; null where the batch API gives none. */
  detail: string | null
  /** Whether the batch failed for lack of room, and may be accepted later. */
  isThrottled: boolean
  /** The lines that caused a failure; empty where none is named, null where the cause is something else. */
  blamed: readonly BlamedLine[] | null
  /** Whether the batch API says that it failed for this service's key, account or address. */
  refusesService: boolean
  /** JSON of the counts and the cost that the batch API reports. */
  report: string
}

export interface BatchApi {
  /** Whether the batch API accepts `metadata` on lines. */
  readonly lineMetadata: boolean
  /** The shortest time between two polls of a batch (ms). */
  readonly pollMsMin?: number
  /** The time (ms) after which a call without an answer can have no effect any more: a later lookup is final. */
  readonly settleMs: number
  /** Uploads an input file. Returns its ID; null where batches carry their requests themselves. */
  upload(name: string, requests: readonly BatchRequest[], signal?: AbortSignal): Promise<string | null>
  /** Finds the ID of the file that was uploaded under a name; null if there is none. */
  findFile(name: string, signal?: AbortSignal): Promise<string | null>
  create(batch: NewBatch, signal?: AbortSignal): Promise<SeenBatch>
  /**
   * Finds batches of a name or over a file, oldest first; null where batches cannot be listed. Throws UndecidedBatch
   * while the batch cannot be told from others.
   */
  find(wanted: WantedBatch, signal?: AbortSignal): Promise<SeenBatch[] | null>
  /** Reads a batch by its ID; null where there is no such batch. */
  read(id: string, signal?: AbortSignal): Promise<SeenBatch | null>
  /** Cancels a batch; succeeds for a batch that has ended. */
  cancel(id: string, signal?: AbortSignal): Promise<void>
  /** Reads the lines of a file, without their line breaks. */
  lines(file_id: string, signal?: AbortSignal): AsyncIterable<Buffer>
  remove(file_id: string, signal?: AbortSignal): Promise<void>
  close(): Promise<void>
}

/** The error of a failed call to a batch API. */
export class BatchApiError extends Error {
  /** The result of a line that would have been sent by this call. */
  readonly result: Extract<BackendResult, { kind: 'throttled' | 'failed' }>
  /** Whether the call certainly had no effect: it was rejected, or reached no server. */
  readonly hadNoEffect: boolean
  /** The lines that caused the error; empty where none is named, null where the cause is something else. */
  readonly blamed: readonly BlamedLine[] | null
  /** Whether the batch API may accept fewer lines at once. */
  readonly isTooMuch: boolean

  constructor(
    result: BatchApiError['result'],
    hadNoEffect: boolean,
    blamed: readonly BlamedLine[] | null = null,
    isTooMuch = false,
  ) {
    super(result.reason)
    this.name = 'BatchApiError'
    this.result = result
    this.hadNoEffect = hadNoEffect
    this.blamed = blamed
    this.isTooMuch = isTooMuch
  }

  /** Whether the object that the call names does not exist. */
  get isGone(): boolean {
    return this.result.status === 404 || this.result.status === 410
  }
}

/** The error for a created object whose ID no call can name, so that its state can never be read. */
export class UnusableId extends BatchApiError {}

/** The error while several batches may be the wanted one: only their results can decide it. */
export class UndecidedBatch extends BatchApiError {}
