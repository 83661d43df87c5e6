// The port of batch APIs, at a provider or at another Offpeak. Each method makes one call, or a few calls that only
// read, and never retries: only its caller knows which calls are safe to repeat.
import type { EndpointPath } from '../../domain/endpoint.ts'
import type { BackendResult } from '../backend.ts'

/** A line that a batch API names as a reason to reject a whole file. */
export interface BlamedLine {
  /** The ID as the file has it; null where the line is named by its number. */
  custom_id: string | null
  /** From 1; null where it is named by its custom_id. */
  line: number | null
  message: string
}

/** A request of a batch. */
export interface BatchRequest {
  custom_id: string
  endpoint: EndpointPath
  /** Null where it has none, or is sent without. */
  metadata: Readonly<Record<string, unknown>> | null
  /** JSON. */
  body: Uint8Array
}

export interface NewBatch {
  /** Unique: the batch carries it in whatever way the batch API allows. */
  name: string
  /** Null where no file was uploaded, since the batch carries its requests itself. */
  file_id: string | null
  requests: () => readonly BatchRequest[]
  endpoint: EndpointPath
  /** The names of its batch and chunk, for operators who look at it there. */
  metadata: Readonly<Record<string, string>>
}

/** A batch that may have been created. */
export interface WantedBatch {
  name: string
  file_id: string | null
  /** How many requests it has. */
  line_count: number
  /** Unix ms: it is not older. */
  since: number
  /** The ones among these IDs that batches of other names are known to have. */
  taken: (ids: readonly string[]) => Promise<ReadonlySet<string>>
}

/** A batch as the batch API shows it. */
export interface SeenBatch {
  id: string
  /** In its own words, in lower case. */
  status: string
  /** Whether the status is one that says how the batch is doing. */
  isKnown: boolean
  /** Null while it runs; else how it ended, in lower case: completed, failed, expired, cancelled. */
  ended: string | null
  /** The share of its requests that have ended, 0 to 1; 0 where it does not say. */
  done: number
  output_file_id: string | null
  error_file_id: string | null
  /** Why it failed; null where nothing is said. */
  detail: string | null
  /** Whether it failed for lack of room, and may be accepted later. */
  isThrottled: boolean
  /** The lines that it failed for; empty where it names none, null where it failed for something else. */
  blamed: readonly BlamedLine[] | null
  /** Whether it failed for what this service is or has there, and says so. */
  refusesService: boolean
  /** JSON of its counts and its cost, as far as it says. */
  report: string
}

export interface BatchApi {
  /** Whether lines may carry `metadata`. */
  readonly lineMetadata: boolean
  /** How long a batch is left alone between two looks at least (ms). */
  readonly pollMsMin?: number
  /** How long after a call (ms) it certainly has no effect any more: what is looked up then is final. */
  readonly settleMs: number
  /** Returns the ID of the file; null where batches carry their requests themselves. */
  upload(name: string, requests: readonly BatchRequest[], signal?: AbortSignal): Promise<string | null>
  /** The file that was uploaded under this name, if any. */
  findFile(name: string, signal?: AbortSignal): Promise<string | null>
  create(batch: NewBatch, signal?: AbortSignal): Promise<SeenBatch>
  /**
   * Batches of this name or over this file, oldest first; null where batches cannot be listed. Throws UndecidedBatch where
   * it cannot be told yet.
   */
  find(wanted: WantedBatch, signal?: AbortSignal): Promise<SeenBatch[] | null>
  /** Null where there is no such batch. */
  read(id: string, signal?: AbortSignal): Promise<SeenBatch | null>
  /** Also of a batch that has ended. */
  cancel(id: string, signal?: AbortSignal): Promise<void>
  /** The lines of a file, without their line breaks. */
  lines(file_id: string, signal?: AbortSignal): AsyncIterable<Buffer>
  remove(file_id: string, signal?: AbortSignal): Promise<void>
  close(): Promise<void>
}

/** The call failed. */
export class BatchApiError extends Error {
  /** The result that a line would have had which was sent by this call. */
  readonly result: Extract<BackendResult, { kind: 'throttled' | 'failed' }>
  /** Whether the call surely had no effect: it was rejected, or reached no server. */
  readonly hadNoEffect: boolean
  /** The lines that are the reason; empty where none is named, null where the reason is something else. */
  readonly blamed: readonly BlamedLine[] | null
  /** Whether fewer lines may be accepted. */
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

  /** Whether there is nothing where something was looked for. */
  get isGone(): boolean {
    return this.result.status === 404 || this.result.status === 410
  }
}

/** The error for a created object whose ID no call can name, so that nothing will ever be known of it. */
export class UnusableId extends BatchApiError {}

/** Some batches at the batch API may be the wanted one; only their results will show which. */
export class UndecidedBatch extends BatchApiError {}
