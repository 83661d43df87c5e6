// The tables, as typed queries see them. Times are Unix milliseconds, money is nano-dollars, JSON is text:
// the same columns on every database. No table has a row per line.
import type { Generated, Insertable, Selectable } from 'kysely'
import type { CompatMode } from '../domain/api-key.ts'
import type { BatchStatus, DedupeMode } from '../domain/batch.ts'
import type { EndpointPath } from '../domain/endpoint.ts'
import type { EventType } from '../domain/event.ts'
import type { FilePurpose, FileStatus, UploadStatus } from '../domain/file.ts'
import type { Limit } from '../domain/limit.ts'
import type { RemoteBatchState } from '../domain/remote-batch.ts'

export interface Schema {
  projects: ProjectTable
  api_keys: ApiKeyTable
  files: FileTable
  batches: BatchTable
  chunks: ChunkTable
  remote_batches: RemoteBatchTable
  journal_parts: JournalPartTable
  tasks: TaskTable
  workers: WorkerTable
  blobs: BlobTable
  http_requests: HttpRequestTable
  idempotency_keys: IdempotencyTable
  anonymous_requests: AnonymousRequestTable
  rate_buckets: RateBucketTable
  limits: LimitTable
  limit_versions: LimitVersionTable
  usage_days: UsageDayTable
  project_days: ProjectDayTable
  ledger_entries: LedgerEntryTable
  reservations: ReservationTable
  batch_projected_spend: ProjectedSpendTable
  limit_crossings: CrossingTable
  prompt_statistics: PromptStatisticsTable
  events: EventTable
  webhooks: WebhookTable
  deliveries: DeliveryTable
  database_properties: PropertyTable
  lane_reports: LaneReportTable
  console_sessions: ConsoleSessionTable
  batch_statistics: BatchStatisticsTable
  worker_reports: WorkerReportTable
  uploads: UploadTable
  upload_parts: UploadPartTable
  paused_models: PausedModelTable
}

interface ProjectTable {
  id: string
  name: string
  plan: string
  created: number
}

interface ApiKeyTable {
  id: string
  project_id: string
  name: string | null
  /** SHA-256 of the secret, hex. */
  secret_sha256: string
  /** JSON array. */
  scopes: string
  created: number
  revoked_at: number | null
  /** To about a minute. */
  last_used_at: Generated<number | null>
  /** How its answers are rendered, where a call does not say; null: in the API's own form. */
  compat: Generated<CompatMode | null>
}

interface FileTable {
  id: string
  project_id: string
  purpose: FilePurpose
  filename: string
  bytes: number
  line_count: number
  status: FileStatus
  status_details: string | null
  /** JSON array of the first bad lines. */
  errors: string | null
  created: number
  expires_at: number
  /** Set when the file is deleted; its content is deleted later. */
  deleted_at: number | null
  /** An upload's content. Files of results have none: they are manifests over `batch_id`'s chunks. */
  content_blob: string | null
  /** Chunk spans and sums by (model, entity), as validation found them. */
  index_blob: string | null
  batch_id: string | null
  part: 'output' | 'error' | null
}

interface BatchTable {
  id: string
  project_id: string
  key_id: string
  status: BatchStatus
  endpoint: EndpointPath
  input_file_id: string
  output_file_id: string | null
  error_file_id: string | null
  completion_window: string
  /** JSON object, as the caller gave it. */
  metadata: string | null
  /** From the header X-Service-Entity; used where neither line nor batch metadata names an entity. */
  header_entity: string | null
  language: string | null
  total: number
  completed: number
  failed: number
  cost_nanos: number
  /** Lines that ended as batch_expired: whether the batch is expired or completed in the end. */
  expired_lines: number
  chunk_count: number
  chunks_sealed: number
  output_bytes: number
  output_lines: number
  error_bytes: number
  error_lines: number
  /** Set when the input file was deleted while lines were still to be sent. */
  input_deleted_at: number | null
  created: number
  in_progress_at: number | null
  completed_at: number | null
  failed_at: number | null
  expired_at: number | null
  cancelling_at: number | null
  cancelled_at: number | null
  expires_at: number
  /** Its projected spend, in nano-dollars and tokens; 0 once it has ended. */
  projected_nanos: number
  projected_tokens: number
  /** When its rate was sampled last (null until its first line ended), how many lines had ended then, and the rate. */
  rate_sampled_at: number | null
  rate_lines: number
  lines_per_s: number | null
  /** The retention of its result files, if shorter than the plan's. */
  output_expires_after_ms: Generated<number | null>
  /** Which of its identical requests are sent once; null: none. */
  dedupe: Generated<DedupeMode | null>
  /** The W3C trace context of the call that created it. */
  traceparent: Generated<string | null>
  /** When its chunks were made. */
  queued_at: Generated<number | null>
  /** Of its lines with a result; null in batches of earlier versions, whose tokens were not summed. */
  prompt_tokens: Generated<number | null>
  completion_tokens: Generated<number | null>
  total_tokens: Generated<number | null>
  /** Of those tokens, as servers report it. */
  cached_tokens: Generated<number>
  reasoning_tokens: Generated<number>
  /** Of a failed batch: JSON array of what is wrong with its first lines. */
  errors: Generated<string | null>
  /** No line is sent before (Unix ms). */
  start_after: Generated<number | null>
  /** Since when it is paused (Unix ms). */
  paused_at: Generated<number | null>
  /** JSON array of the models that its lines name; null when there are too many, or in earlier versions. */
  models: Generated<string | null>
  input_filename: Generated<string | null>
  /** Lines that share the answer of an identical line, and what their own answers would have cost. */
  shared_lines: Generated<number>
  saved_nanos: Generated<number>
  /** Lines that ask what an earlier line asks, and are sent all the same: their answers depend on chance. */
  unshared_lines: Generated<number>
}

/** `ready` to be claimed, `leased` to a worker, `parked` until `run_at`, `sealed` for good. */
export type ChunkState = 'ready' | 'leased' | 'parked' | 'sealed'

interface ChunkTable {
  batch_id: string
  idx: number
  project_id: string
  state: ChunkState
  /** Raised by every claim; each commit names the epoch it was claimed with. */
  epoch: number
  /** Raised by every commit under a lease; each commit names the previous number. */
  commit_seq: Generated<number>
  /** The reservation that took effect last under the lease; the next one names it. */
  reservation_seq: Generated<number>
  /** Why its results cannot be recorded; its unfinished lines then end as errors. Usually null. */
  record_error: Generated<string | null>
  worker_id: string | null
  run_at: number
  parked_reason: string | null
  /** JSON of how often its unfinished lines had been tried when it was parked last; null if none was. */
  line_tries: Generated<string | null>
  /** By position, the first line with the same request (jsonl/first-lines.ts); null where no line has an earlier one. */
  first_lines: Generated<string | null>
  /** The model of all its lines; null if there are several. */
  model: string | null
  /** The entity of its batch; '' if it has none. */
  entity: Generated<string>
  /** The batch's expires_at. */
  deadline: number
  first_line: number
  line_count: number
  byte_start: number
  byte_end: number
  completed: number
  failed: number
  cost_nanos: number
  output_blob: string | null
  output_bytes: number
  error_blob: string | null
  error_bytes: number
  audit_blob: string | null
  /** How many batches at batch APIs have lines of it whose results are not recorded yet. */
  remote_batches: Generated<number>
}

/**
 * `intended`: nothing but its file can be there. `creating`: it may have been created. `open`: it is there. `ended`: it
 * has results to record, or none. `recorded`: its files there are to be deleted. `abandoned`: it is to be cancelled if
 * it is still there. `done`: nothing is left to do.
 */

/** A batch at a batch API, made of lines of one chunk (store/remote-batches.ts). */
interface RemoteBatchTable {
  /** Its name there: in its metadata, its file's name and its idempotency key. */
  id: string
  batch_id: string
  idx: number
  project_id: string
  model: string
  /** The name of the upstream among those of the model. */
  upstream: string
  state: RemoteBatchState
  /** JSON of its lines as pairs [first, last] of line numbers. */
  lines: string
  /** JSON of what its lines have reserved (RemoteReservation); null once that is released. */
  reserved: Generated<string | null>
  /** The UTC day under whose limits its lines were reserved, and to which they are charged; null: under none. */
  day: Generated<number | null>
  file_id: Generated<string | null>
  remote_id: Generated<string | null>
  output_file_id: Generated<string | null>
  error_file_id: Generated<string | null>
  /** Its status when it was looked at last, and how it ended; `abandoned` where it was given up. */
  status: Generated<string | null>
  /** Why it failed, or why nothing is known of it. */
  detail: Generated<string | null>
  created: number
  /** When it was to be created last (Unix ms). */
  creating_at: Generated<number | null>
  /** How often it was to be created. */
  creations: Generated<number>
  /** When its cancellation was asked for. */
  cancelled_at: Generated<number | null>
  /** Since when the batch API has not answered. */
  failing_since: Generated<number | null>
  /** When to look next; null: not again. */
  poll_at: Generated<number | null>
  line_count: number
  /** The lines that it answered and what they cost here. */
  answered: Generated<number>
  cost_nanos: Generated<number>
  /** JSON of what it says of itself in the end: counts and cost. */
  remote_report: Generated<string | null>
}

/** The part of a journal blob with finished lines of an open chunk. */
interface JournalPartTable {
  batch_id: string
  idx: number
  journal_blob: string
  byte_start: number
  byte_end: number
  /** JSON of the sums of its lines. */
  sums: string
}

export type TaskKind = 'validate' | 'plan' | 'purge' | 'deliver'

interface TaskTable {
  id: string
  kind: TaskKind
  /** The ID of the object that it is about. */
  subject: string
  project_id: string
  /** 1 for a task that may take long; such tasks cannot use all slots. */
  large: Generated<number>
  state: 'ready' | 'leased'
  epoch: number
  worker_id: string | null
  run_at: number
  attempts: number
  last_error: string | null
  created: number
}

export type SessionRole = 'worker' | 'api'

/** A session of a worker process. Its leases hold as long as `lease_until` lies ahead, by the database's clock. */
interface WorkerTable {
  id: string
  /** A process that only serves the API has a session too, so that admin commands see it. */
  role: Generated<SessionRole>
  lease_until: number
  started: number
  /** With `lease_until`, when the lease was renewed. */
  lease_ms: number | null
}

/** A model whose servers are unavailable, throttle a worker, or fail on lines of some batches. */
interface LaneReportTable {
  worker_id: string
  model: string
  state: 'starting' | 'unavailable' | 'live_traffic' | 'throttled' | 'failing'
  since: number
  /** JSON of UpstreamErrors (workers.ts). */
  details: string | null
}

/** A model of which a project sends no lines. */
interface PausedModelTable {
  project_id: string
  model: string
  paused_at: number
}

/** One row per sealed blob: its wrapped key, so that a rotation of the master key rewrites rows, not blobs. */
interface BlobTable {
  key: string
  project_id: string
  wrapped_key: string
  bytes: number
  created: number
  /** Set when the blob is pending deletion: its wrapped key is destroyed, its bytes are deleted soon. */
  deletion_pending_since: number | null
}

interface HttpRequestTable extends Omit<AnonymousRequestTable, 'address'> {
  project_id: string
  key_id: string
  entity: string | null
  /** JSON of the response; for POST and DELETE only. */
  response: string | null
  /** The W3C trace context that the caller sent. */
  traceparent: string | null
}

interface IdempotencyTable {
  project_id: string
  route: string
  key: string
  /** SHA-256 over what must be the same on a retry. */
  fingerprint: string
  state: 'in_progress' | 'done'
  request_id: string
  status: number | null
  response: string | null
  created: number
  expires: number
}

interface EventTable {
  id: string
  project_id: string
  type: EventType
  /** JSON object. */
  data: string
  created: number
}

interface WebhookTable {
  id: string
  project_id: string
  url: string
  description: string | null
  /** JSON array; null: every type. */
  event_types: string | null
  /** The signing secret, wrapped by the master key. */
  wrapped_secret: string
  /** The secret before the last rotation; signs as well until `previous_until`. */
  previous_secret: string | null
  previous_until: number | null
  /** Set by its owner, or when its receiver answered 410. */
  disabled_at: number | null
  disabled_reason: string | null
  created: number
}

export type DeliveryStatus = 'pending' | 'delivered' | 'failed'

/** The delivery of one event to one webhook; while it is pending, there is a task for it. */
interface DeliveryTable {
  id: string
  webhook_id: string
  event_id: string
  status: DeliveryStatus
  /** When it was queued, or replayed: how long it is tried counts from here. */
  started: number
  attempts: number
  next_attempt_at: number | null
  last_attempt_at: number | null
  last_status: number | null
  /** Why the last attempt failed, with the beginning of what the receiver said. */
  last_error: string | null
  created: number
}

interface LimitTable extends Omit<Limit, 'entity' | 'entity_type' | 'notify_at'> {
  /** The entity or the entity type, as the scope says; empty for the whole project. */
  subject: string
  /** JSON array of fractions. */
  notify_at: string
}

/** Raised by every change to a project's limits: what was checked under another version is checked again. */
interface LimitVersionTable {
  project_id: string
  version: number
}

/** Settled usage by the UTC day on which the line finished. `entity` and `model` are empty for none. */
interface UsageDayTable {
  project_id: string
  entity: string
  day: number
  model: string
  /** Of the entity; empty when it has none. */
  entity_type: string
  succeeded: number
  failed: number
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
  cost_nanos: number
}

/** The same, summed over all entities: what a limit on the project reads. */
interface ProjectDayTable {
  project_id: string
  day: number
  cost_nanos: number
  tokens: number
}

/** One row per commit, chunk, entity and day; never changed. */
interface LedgerEntryTable {
  id: string
  project_id: string
  batch_id: string
  idx: number
  entity: string
  day: number
  kind: 'settle'
  lines: number
  tokens: number
  cost_nanos: number
  created: number
}

/** The reservations of a leased chunk. */
interface ReservationTable {
  batch_id: string
  idx: number
  entity: string
  project_id: string
  cost_nanos: number
  tokens: number
}

/** The projected spend of an open batch, by named entity. */
type ProjectedSpendTable = Omit<ReservationTable, 'idx'>

/** What servers reported of prompts: their bytes in the input, and their tokens; those of long ones as well. */
interface PromptStatisticsTable {
  model: string
  bytes: number
  tokens: number
  long_bytes: number
  long_tokens: number
}

/** Crossed thresholds: each once per window and spender. */
interface CrossingTable {
  limit_id: string
  /** Empty for the whole project. */
  entity: string
  window_start: number
  threshold: number
  created: number
}

/** Properties of the database as a whole. */
interface PropertyTable {
  name: string
  value: string
}

/** A rejected call without a valid key. */
interface AnonymousRequestTable {
  id: string
  method: string
  path: string
  status: number
  created: number
  duration_ms: number
  /** Where it came from, as the server saw it. */
  address: string
  /** The key that the call named, whether there is such a key or not. */
  key_id: string | null
}

interface RateBucketTable {
  key_id: string
  /** When the bucket will be full, by the database's clock, in Unix µs. */
  full_at: number
  /** By the last call that asked. */
  granted: number
}

/** A browser that is signed in with a key, or a one-time link that may sign one in. */
interface ConsoleSessionTable {
  token_sha256: string
  kind: 'session' | 'link'
  key_id: string
  created: number
  /** Unix ms. */
  expires: number
}

/** Written with the commits of a batch; both are bounded (results/batch-statistics.ts). */
interface BatchStatisticsTable {
  batch_id: string
  /** JSON of its failed lines by code and message. */
  errors: string
  /** JSON of what finished when. */
  timeline: string
}

/** How a worker and its model servers do, replaced every few seconds; gone with its session. */
interface WorkerReportTable {
  worker_id: string
  reported_at: number
  /** JSON of WorkerReport (workers.ts). */
  report: string
}

/** An upload in parts; once it is completed it is a file. */
interface UploadTable {
  id: string
  project_id: string
  status: UploadStatus
  filename: string
  mime_type: string
  /** What its parts come to in the end, as its caller announced. */
  bytes: number
  /** What all its parts come to now, those included that are sent twice. */
  part_bytes: number
  /** How soon the file is to be gone, where that is sooner than the plan says. */
  file_expires_after_ms: number | null
  file_id: string | null
  /** Raised by each call that begins to complete it. */
  completion_attempt: Generated<number>
  /** Until when that call has the upload to itself unless it renews, by the database's clock; null once it has failed. */
  completing_until: Generated<number | null>
  /** What it asks for, as a hash. */
  completion_order: Generated<string | null>
  /** JSON of the error that it ended with. */
  completion_failure: Generated<string | null>
  created: number
  /** When it and its parts are gone unless it is completed. */
  expires_at: number
}

interface UploadPartTable {
  id: string
  upload_id: string
  bytes: number
  /** Of the content, hex. */
  sha256: string
  blob: string
  created: number
}

export type ProjectRow = Selectable<ProjectTable>
export type ApiKeyRow = Selectable<ApiKeyTable>
export type NewApiKeyRow = Insertable<ApiKeyTable>
export type FileRow = Selectable<FileTable>
export type BatchRow = Selectable<BatchTable>
export type ChunkRow = Selectable<ChunkTable>
export type RemoteBatchRow = Selectable<RemoteBatchTable>
export type JournalPartRow = Selectable<JournalPartTable>
export type TaskRow = Selectable<TaskTable>
export type BlobRow = Selectable<BlobTable>
export type AnonymousRequestRow = Selectable<AnonymousRequestTable>
export type HttpRequestRow = Selectable<HttpRequestTable>
export type IdempotencyRow = Selectable<IdempotencyTable>
export type EventRow = Selectable<EventTable>
export type WebhookRow = Selectable<WebhookTable>
export type DeliveryRow = Selectable<DeliveryTable>
export type LimitRow = Selectable<LimitTable>
export type UsageDayRow = Selectable<UsageDayTable>
export type ProjectDayRow = Selectable<ProjectDayTable>
export type LedgerEntryRow = Selectable<LedgerEntryTable>
export type ReservationRow = Selectable<ReservationTable>
export type ProjectedSpendRow = Selectable<ProjectedSpendTable>
export type CrossingRow = Selectable<CrossingTable>
export type UploadRow = Selectable<UploadTable>
export type UploadPartRow = Selectable<UploadPartTable>
export type LaneReportRow = Selectable<LaneReportTable>
export type ConsoleSessionRow = Selectable<ConsoleSessionTable>
export type BatchStatisticsRow = Selectable<BatchStatisticsTable>
