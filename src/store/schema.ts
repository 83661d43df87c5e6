// The tables: what rows hold, for typed queries, and what migrations make (migrate.ts). Times are Unix milliseconds, money
// is nano-dollars, JSON is text: the same columns on every database. No table has a row per line. A table comes behind
// the tables that it refers to.
import type { Generated, Insertable, Selectable } from 'kysely'
import type { CompatMode } from '../domain/api-key.ts'
import type { BatchStatus, DedupeMode, RemoteBatchState } from '../domain/batch.ts'
import type { BatchEndpoint } from '../domain/endpoint.ts'
import type { EventType } from '../domain/event.ts'
import type { FilePurpose, FileStatus, UploadStatus } from '../domain/file.ts'
import { recordOf } from '../domain/json-record.ts'
import type { LimitAction, LimitMetric, LimitScope, LimitWindow } from '../domain/limit.ts'
import { BATCH_SUMS, DAY_SUMS, LINE_SUMS } from '../domain/line-sums.ts'

// The words that describe columns.

interface Traits {
  isKey?: true
  isNullable?: true
  isUnique?: true
  initial?: string | number
  /** The table whose `id` it holds. */
  references?: string
  /** The number of the migration that adds it; the first one if not given. */
  since?: number
}

/** `Stored` is its type for Kysely. */
export class Column<Stored> {
  declare readonly stored: Stored
  readonly kind: 'text' | 'bigint' | 'integer' | 'double precision'
  readonly traits: Traits

  constructor(kind: Column<Stored>['kind'], traits: Traits = {}) {
    this.kind = kind
    this.traits = traits
  }

  #with<Other>(trait: Traits): Column<Other> {
    return new Column(this.kind, { ...this.traits, ...trait })
  }

  /** The columns of a table with this trait are its primary key, in their order. */
  key(): Column<Stored> {
    return this.#with({ isKey: true })
  }

  optional(): Column<Generated<Stored | null>> {
    return this.#with({ isNullable: true })
  }

  /** The value of a row that is inserted without it. */
  or(initial: string | number): Column<Generated<Stored>> {
    return this.#with({ initial })
  }

  unique(): Column<Stored> {
    return this.#with({ isUnique: true })
  }

  references(table: string): Column<Stored> {
    return this.#with({ references: table })
  }

  since(migration: number): Column<Stored> {
    return this.#with({ since: migration })
  }
}

const text = <Value extends string = string>() => new Column<Value>('text')
const whole = () => new Column<number>('bigint')
const integer = () => new Column<number>('integer')
const double = () => new Column<number>('double precision')
const counter = () => whole().or(0)

export type Columns = Readonly<Record<string, Column<unknown>>>

export interface Index {
  table: string
  /** Columns, as SQL. */
  on: string
  /** The condition of a partial index, as SQL. */
  where?: string
  since?: number
}

/** `ready` to be claimed, `leased` to a worker, `parked` until `run_at`, `sealed` for good. */
type ChunkState = 'ready' | 'leased' | 'parked' | 'sealed'
export type TaskKind = 'validate' | 'plan' | 'purge' | 'deliver' | 'fetch' | 'make' | 'export'
export type SessionRole = 'worker' | 'api'
export type DeliveryStatus = 'pending' | 'delivered' | 'failed'

export const TABLES = {
  projects: {
    id: text().key(),
    name: text().unique(),
    plan: text(),
    created: whole(),
  },
  api_keys: {
    id: text().key(),
    project_id: text().references('projects'),
    name: text().optional(),
    /** SHA-256 of the secret, hex. */
    secret_sha256: text(),
    /** JSON array. */
    scopes: text(),
    created: whole(),
    revoked_at: whole().optional(),
    /** To about a minute. */
    last_used_at: whole().optional(),
    /** How its answers are rendered, where a call does not say; null: in the API's own form. */
    compat: text<CompatMode>().optional(),
    /** JSON of Retention: that of its batches at most; null: as the plan says. */
    retention: text().optional(),
    /** Of the tokens whose subject has the row; null for keys and persons. */
    issuer: text().optional(),
  },
  files: {
    id: text().key(),
    project_id: text().references('projects'),
    purpose: text<FilePurpose>(),
    filename: text(),
    bytes: whole(),
    line_count: whole(),
    status: text<FileStatus>(),
    status_details: text().optional(),
    /** JSON array of the first bad lines. */
    errors: text().optional(),
    created: whole(),
    expires_at: whole(),
    /** Set when the file is deleted; its content is deleted later. */
    deleted_at: whole().optional(),
    /** An upload's content. Files of results have none: they are manifests over `batch_id`'s chunks. */
    content_blob: text().optional(),
    /** Chunk spans and sums by (model, entity), as validation found them. */
    index_blob: text().optional(),
    /** The index of the custom_ids (jsonl/custom-ids.ts); null while it is not validated. */
    ids_blob: text().optional(),
    batch_id: text().optional(),
    part: text<'output' | 'error'>().optional(),
    /** JSON of FileSource (files.ts): of an input that comes from a bucket. */
    source: text().optional(),
    /** 1: its batch does not keep it; callers are then told that its content was destroyed. */
    not_kept: integer().or(0),
  },
  batches: {
    id: text().key(),
    project_id: text().references('projects'),
    key_id: text(),
    status: text<BatchStatus>(),
    endpoint: text<BatchEndpoint>(),
    input_file_id: text().references('files'),
    output_file_id: text().optional(),
    error_file_id: text().optional(),
    completion_window: text(),
    /** JSON object, as the caller gave it. */
    metadata: text().optional(),
    /** From the header X-Service-Entity; used where neither line nor batch metadata names an entity. */
    header_entity: text().optional(),
    language: text().optional(),
    total: whole(),
    completed: counter(),
    ...recordOf(BATCH_SUMS, (name) => counter().since(LINE_SUMS[name].batches)),
    /** Lines that ended as batch_expired: whether the batch is expired or completed in the end. */
    expired_lines: counter(),
    /** Failed lines without those that were never sent. */
    run_failed: counter(),
    chunk_count: counter(),
    chunks_sealed: counter(),
    output_bytes: counter(),
    output_lines: counter(),
    error_bytes: counter(),
    error_lines: counter(),
    /** Set when the input file was deleted while lines were still to be sent. */
    input_deleted_at: whole().optional(),
    created: whole(),
    in_progress_at: whole().optional(),
    completed_at: whole().optional(),
    failed_at: whole().optional(),
    expired_at: whole().optional(),
    cancelling_at: whole().optional(),
    cancelled_at: whole().optional(),
    expires_at: whole(),
    /** When its rate was sampled last (null until its first line ended), how many lines had ended then, and the rate. */
    rate_sampled_at: whole().optional(),
    rate_lines: counter(),
    lines_per_s: double().optional(),
    /** That rate, or once it has ended the mean of its whole run; 0 before the first sample. Lists are in its order. */
    speed: double().or(0),
    /** The retention of its result files, if shorter than the plan's. */
    output_expires_after_ms: whole().optional(),
    /** JSON of Retention: how long its content is kept; null: as other files. */
    retention: text().optional(),
    /** JSON of Fetched: which of its results callers have been sent; only with `retention`. */
    fetched: text().optional(),
    /** Which of its identical requests are sent once; null: none. */
    dedupe: text<DedupeMode>().optional(),
    /** The W3C trace context of the call that created it. */
    traceparent: text().optional(),
    /** When its chunks were made. */
    queued_at: whole().optional(),
    /** The problems of the first lines of a failed batch, as a JSON array; the reasons why lines of an expired one waited. */
    errors: text().optional(),
    /** No line is sent before (Unix ms). */
    start_after: whole().optional(),
    /** Since when it is paused (Unix ms). */
    paused_at: whole().optional(),
    /** JSON array of the models that its lines name; null when there are too many. */
    models: text().optional(),
    input_filename: text().optional(),
    /** The name by which lists are ordered. */
    name: text().or(''),
    /** Where in a bucket its input comes from, and where its results are written when it has ended. */
    input_url: text().optional(),
    output_url: text().optional(),
    output_url_status: text<DeliveryStatus>().optional(),
    /** Why the results are not written yet, or not at all. */
    output_url_error: text().optional(),
    /** When it was deleted as a message batch. */
    deleted_at: whole().optional(),
    /** Lines that ask what an earlier line asks, and are sent all the same: their answers depend on chance. */
    unshared_lines: integer().or(0),
    /** JSON of Reask: which answers are asked for again; null: none. */
    reask: text().optional(),
    /** `file`: lines are sent in the order of the input; null: in one that servers' prefix caches gain from. */
    line_order: text<'file'>().optional(),
    /** Lines with so many bytes of their prompts in common are sent one after the other; 0: what each chunk shows is. */
    prefix_bytes: integer().or(0),
    /** A worker opens chunks until so many of its lines wait, since those that begin alike are in any chunks; 0: few. */
    lines_ahead: integer().or(0),
    /** 1 for a batch that gathers requests which come one at a time (intake/gathered-requests.ts). */
    is_gathered: integer().or(0),
    /** Until when it takes further requests (Unix ms); 0 while its lines become a file; null: it takes none. */
    gathers_until: whole().optional(),
    /** Raised when single lines of it are cancelled. */
    line_cancels: integer().or(0),
  },
  chunks: {
    batch_id: text().key().references('batches'),
    idx: whole().key(),
    project_id: text(),
    state: text<ChunkState>(),
    /** Raised by every claim; each commit names the epoch it was claimed with. */
    epoch: counter(),
    /** Raised by every commit under a lease; each commit names the previous number. */
    commit_seq: counter(),
    /** The reservation that took effect last under the lease; the next one names it. */
    reservation_seq: counter(),
    /** Why its results cannot be recorded; its unfinished lines then end as errors. Usually null. */
    record_error: text().optional(),
    worker_id: text().optional(),
    run_at: counter(),
    parked_reason: text().optional(),
    /** JSON of how often its unfinished lines had been tried when it was parked last; null if none was. */
    line_tries: text().optional(),
    /** By position, the first line with the same request (jsonl/first-lines.ts); null where no line has an earlier one. */
    first_lines: text().optional(),
    /** The model of all its lines; null if there are several. */
    model: text().optional(),
    /** The entity of its batch; '' if it has none. */
    entity: text().or(''),
    /** The key that its batch was created with. */
    key_id: text().or(''),
    /** The batch's expires_at. */
    deadline: whole(),
    first_line: whole(),
    line_count: whole(),
    byte_start: whole(),
    byte_end: whole(),
    /** The blob with the input of this chunk alone, while its batch gathers requests; null: the input is that of the batch. */
    input_blob: text().optional(),
    /** JSON of the numbers of its lines that were cancelled one by one. */
    cancelled_lines: text().optional(),
    /** The same of those that were deleted as background responses. */
    deleted_lines: text().optional(),
    completed: counter(),
    failed: counter(),
    cost_nanos: counter(),
    output_blob: text().optional(),
    output_bytes: counter(),
    error_blob: text().optional(),
    error_bytes: counter(),
    audit_blob: text().optional(),
    /** When it was sealed; null before. */
    sealed_at: whole().optional(),
    /** How many batches at batch APIs have lines of it whose results are not recorded yet. */
    remote_batches: integer().or(0),
  },
  /** A batch at a batch API, made of lines of one chunk (store/remote-batches.ts). */
  remote_batches: {
    /** Its name there: in its metadata, its file's name and its idempotency key. */
    id: text().key(),
    batch_id: text().references('batches'),
    idx: integer(),
    project_id: text(),
    model: text(),
    /** The name of the upstream among those of the model. */
    upstream: text(),
    state: text<RemoteBatchState>(),
    /** JSON of its lines as pairs [first, last] of line numbers. */
    lines: text(),
    /** JSON of what its lines have reserved (RemoteReservation); null once that is released. */
    reserved: text().optional(),
    /** The UTC day under whose limits its lines were reserved, and to which they are charged; null: under none. */
    day: whole().optional(),
    file_id: text().optional(),
    remote_id: text().optional(),
    output_file_id: text().optional(),
    error_file_id: text().optional(),
    /** Its status when it was looked at last, and how it ended; `abandoned` where it was given up. */
    status: text().optional(),
    /** Why it failed, or why nothing is known of it. */
    detail: text().optional(),
    created: whole(),
    /** When it was to be created last (Unix ms). */
    creating_at: whole().optional(),
    /** How often it was to be created. */
    creations: integer().or(0),
    /** When its cancellation was asked for. */
    cancelled_at: whole().optional(),
    /** Since when the batch API has not answered. */
    failing_since: whole().optional(),
    /** When to look next; null: not again. */
    poll_at: whole().optional(),
    line_count: integer(),
    /** The lines that it answered and what they cost here. */
    answered: integer().or(0),
    cost_nanos: counter(),
    /** JSON of what it says of itself in the end: counts and cost. */
    remote_report: text().optional(),
  },
  /** The part of a journal blob with finished lines of an open chunk. */
  journal_parts: {
    batch_id: text().key(),
    idx: whole().key(),
    journal_blob: text().key(),
    byte_start: whole(),
    byte_end: whole(),
    /** JSON of the sums of its lines. No released version left it out, whatever the column allows. */
    sums: new Column<string>('text', { isNullable: true }),
  },
  tasks: {
    id: text().key(),
    kind: text<TaskKind>(),
    /** The ID of the object that it is about. */
    subject: text(),
    project_id: text(),
    /** 1 for a task that may take long; such tasks cannot use all slots. */
    large: integer().or(0),
    state: text<'ready' | 'leased'>(),
    epoch: counter(),
    worker_id: text().optional(),
    run_at: counter(),
    attempts: counter(),
    last_error: text().optional(),
    created: whole(),
  },
  /** A session of a worker process. Its leases hold as long as `lease_until` lies ahead, by the database's clock. */
  workers: {
    id: text().key(),
    /** A process that only serves the API has a session too, so that admin commands see it. */
    role: text<SessionRole>().or('worker'),
    lease_until: whole(),
    started: whole(),
    /** With `lease_until`, when the lease was renewed. */
    lease_ms: whole().optional(),
  },
  /** One row per sealed blob: its wrapped key, so that a rotation of the master key rewrites rows, not blobs. */
  blobs: {
    key: text().key(),
    project_id: text(),
    wrapped_key: text(),
    bytes: whole(),
    created: whole(),
    /** Set when the blob is pending deletion: its wrapped key is destroyed, its bytes are deleted soon. */
    deletion_pending_since: whole().optional(),
  },
  /** An authenticated HTTP call: how it ended, and for one that changes something what was answered. */
  http_requests: {
    id: text().key(),
    project_id: text(),
    key_id: text(),
    method: text(),
    path: text(),
    status: integer(),
    created: whole(),
    duration_ms: integer(),
    entity: text().optional(),
    /** JSON of the response; for POST and DELETE only. */
    response: text().optional(),
    /** The W3C trace context that the caller sent. */
    traceparent: text().optional(),
  },
  idempotency_keys: {
    project_id: text().key(),
    route: text().key(),
    key: text().key(),
    /** SHA-256 over what must be the same on a retry. */
    fingerprint: text(),
    state: text<'in_progress' | 'done'>(),
    request_id: text(),
    status: integer().optional(),
    response: text().optional(),
    created: whole(),
    expires: whole(),
  },
  /** A rejected call without a valid key. */
  anonymous_requests: {
    id: text().key(),
    method: text(),
    path: text(),
    status: integer(),
    created: whole(),
    duration_ms: integer(),
    /** Where it came from, as the server saw it. */
    address: text(),
    /** The key that the call named, whether there is such a key or not. */
    key_id: text().optional(),
  },
  rate_buckets: {
    key_id: text().key(),
    /** When the bucket will be full, by the database's clock, in Unix µs. */
    full_at: whole(),
    /** By the last call that asked. */
    granted: whole(),
  },
  limits: {
    id: text().key(),
    project_id: text().references('projects'),
    scope: text<LimitScope>(),
    /** The entity, the entity type or the key, as the scope says; empty for the whole project. */
    subject: text(),
    /** The only model whose lines count; empty: those of all models. */
    model: text().or(''),
    metric: text<LimitMetric>(),
    amount: whole(),
    window: text<LimitWindow>(),
    action: text<LimitAction>(),
    description: text().optional(),
    /** JSON array of fractions. */
    notify_at: text(),
    created: whole(),
  },
  /** Raised by every change to a project's limits: what was checked under another version is checked again. */
  limit_versions: {
    project_id: text().key(),
    version: whole(),
  },
  /** Settled usage by the UTC day on which the line finished. `entity` and `model` are empty for none. */
  usage_days: {
    project_id: text().key(),
    entity: text().key(),
    day: whole().key(),
    model: text().key(),
    key_id: text().key(),
    /** The type of the entity; empty when it has none. */
    entity_type: text(),
    ...recordOf(DAY_SUMS, (name) => counter().since(LINE_SUMS[name].usage_days)),
  },
  /** The same, summed over all entities: what limits read that are on no entity. */
  project_days: {
    project_id: text().key(),
    day: whole().key(),
    key_id: text().key(),
    model: text().key(),
    cost_nanos: whole(),
    tokens: whole(),
    requests: whole(),
  },
  /** One row per commit, chunk, entity and day; never changed. */
  ledger_entries: {
    id: text().key(),
    project_id: text(),
    batch_id: text(),
    idx: whole(),
    entity: text(),
    day: whole(),
    kind: text<'settle'>(),
    lines: whole(),
    tokens: whole(),
    cost_nanos: whole(),
    created: whole(),
  },
  /** The reservations of a leased chunk. */
  reservations: {
    batch_id: text().key(),
    idx: whole().key(),
    entity: text().key(),
    model: text().key(),
    project_id: text(),
    key_id: text(),
    cost_nanos: whole(),
    tokens: whole(),
    requests: whole(),
  },
  /** The projected spend of an open batch by model: of all its lines, where `entity` is empty, and of each named entity. */
  batch_projected_spend: {
    batch_id: text().key(),
    entity: text().key(),
    model: text().key(),
    project_id: text(),
    key_id: text(),
    cost_nanos: whole(),
    tokens: whole(),
    requests: whole(),
  },
  /** Crossed thresholds: each once per window and spender. */
  limit_crossings: {
    limit_id: text().key(),
    /** Empty for the whole project. */
    entity: text().key(),
    window_start: whole().key(),
    threshold: double().key(),
    created: whole(),
  },
  /** Sums that servers reported of prompts: their bytes in the input, and their tokens; those of long ones as well. */
  prompt_statistics: {
    model: text().key(),
    bytes: whole(),
    tokens: whole(),
    long_bytes: whole(),
    long_tokens: whole(),
  },
  events: {
    id: text().key(),
    project_id: text().references('projects'),
    type: text<EventType>(),
    /** JSON object. */
    data: text(),
    created: whole(),
  },
  webhooks: {
    id: text().key(),
    project_id: text().references('projects'),
    url: text(),
    description: text().optional(),
    /** JSON array; null: every type. */
    event_types: text().optional(),
    /** The batch whose events alone it is sent; null: those of the project. */
    batch_id: text().references('batches').optional(),
    /** The signing secret, wrapped by the master key. */
    wrapped_secret: text(),
    /** The secret before the last rotation; signs as well until `previous_until`. */
    previous_secret: text().optional(),
    previous_until: whole().optional(),
    /** Set by its owner, or when its receiver answered 410. */
    disabled_at: whole().optional(),
    disabled_reason: text().optional(),
    created: whole(),
  },
  /** The delivery of one event to one webhook; while it is pending, there is a task for it. */
  deliveries: {
    id: text().key(),
    webhook_id: text().references('webhooks'),
    event_id: text().references('events'),
    status: text<DeliveryStatus>(),
    /** When it was queued, or replayed: how long it is tried counts from here. */
    started: whole(),
    attempts: counter(),
    next_attempt_at: whole().optional(),
    last_attempt_at: whole().optional(),
    last_status: whole().optional(),
    /** Why the last attempt failed, with the beginning of what the receiver said. */
    last_error: text().optional(),
    created: whole(),
  },
  /** Properties of the database as a whole. */
  database_properties: {
    name: text().key(),
    value: text(),
  },
  /** A model whose servers are unavailable, throttle a worker, or fail on lines of some batches. */
  lane_reports: {
    worker_id: text().key(),
    model: text().key(),
    state: text<'starting' | 'unavailable' | 'live_traffic' | 'throttled' | 'failing'>(),
    since: whole(),
    /** JSON of UpstreamErrors (workers.ts). */
    details: text().optional(),
  },
  /** A browser that is signed in with a key, or a one-time link that may sign one in. */
  console_sessions: {
    token_sha256: text().key(),
    kind: text<'session' | 'link'>(),
    key_id: text().references('api_keys'),
    created: whole(),
    /** Unix ms. */
    expires: whole(),
  },
  /** Written with the commits of a batch; both are bounded (results/batch-statistics.ts). */
  batch_statistics: {
    batch_id: text().key().references('batches'),
    /** JSON of its failed lines by code and message. */
    errors: text(),
    /** JSON of what finished when. */
    timeline: text(),
  },
  /** How a worker and its model servers do, replaced every few seconds; gone with its session. */
  worker_reports: {
    worker_id: text().key(),
    reported_at: whole(),
    /** JSON of WorkerReport (workers.ts). */
    report: text(),
  },
  /** What a model server did in an hour of the clock (Unix ms), for a day; written with reports, so to some seconds. */
  server_hours: {
    model: text().key(),
    upstream: text().key(),
    hour: whole().key(),
    /** Attempts that were answered, and the sum of their durations. */
    answered: counter(),
    answered_ms: counter(),
    /** Attempts that failed or were throttled, and the same. */
    missed: counter(),
    missed_ms: counter(),
  },
  /** An upload in parts; once it is completed it is a file. */
  uploads: {
    id: text().key(),
    project_id: text().references('projects'),
    status: text<UploadStatus>(),
    filename: text(),
    mime_type: text(),
    /** The size of its parts in the end, as its caller announced. */
    bytes: whole(),
    /** The size of all its parts now, those included that are sent twice. */
    part_bytes: counter(),
    /** How soon the file is to be gone, where that is sooner than the plan says. */
    file_expires_after_ms: whole().optional(),
    file_id: text().optional(),
    /** Raised by each call that begins to complete it. */
    completion_attempt: counter(),
    /** Until when that call has the upload to itself unless it renews, by the database's clock; null once it has failed. */
    completing_until: whole().optional(),
    /** The hash of the call that completes it. */
    completion_order: text().optional(),
    /** JSON of the error that it ended with. */
    completion_failure: text().optional(),
    created: whole(),
    /** When it and its parts are gone unless it is completed. */
    expires_at: whole(),
  },
  upload_parts: {
    id: text().key(),
    upload_id: text().references('uploads'),
    bytes: whole(),
    /** The digest of the content, hex. */
    sha256: text(),
    blob: text(),
    created: whole(),
  },
  /** A model of which a project sends no lines. */
  paused_models: {
    project_id: text().key(),
    model: text().key(),
    paused_at: whole(),
  },
}

const KEYS = new Map(
  Object.entries<Columns>(TABLES).map(([table, columns]) => [
    table,
    Object.keys(columns).filter((name) => columns[name]?.traits.isKey),
  ]),
)

/** The columns of the primary key of a table, in their order. */
export function keyOf(table: string): readonly string[] {
  return KEYS.get(table) ?? []
}

type Stored<C extends Columns> = { [Name in keyof C]: C[Name]['stored'] }
export type Schema = { [Name in keyof typeof TABLES]: Stored<(typeof TABLES)[Name]> }

export type ProjectRow = Selectable<Schema['projects']>
export type ApiKeyRow = Selectable<Schema['api_keys']>
export type NewApiKeyRow = Insertable<Schema['api_keys']>
export type FileRow = Selectable<Schema['files']>
export type BatchRow = Selectable<Schema['batches']>
export type ChunkRow = Selectable<Schema['chunks']>
export type RemoteBatchRow = Selectable<Schema['remote_batches']>
export type JournalPartRow = Selectable<Schema['journal_parts']>
export type TaskRow = Selectable<Schema['tasks']>
export type BlobRow = Selectable<Schema['blobs']>
export type AnonymousRequestRow = Selectable<Schema['anonymous_requests']>
export type HttpRequestRow = Selectable<Schema['http_requests']>
export type IdempotencyRow = Selectable<Schema['idempotency_keys']>
export type EventRow = Selectable<Schema['events']>
export type WebhookRow = Selectable<Schema['webhooks']>
export type DeliveryRow = Selectable<Schema['deliveries']>
export type LimitRow = Selectable<Schema['limits']>
export type UsageDayRow = Selectable<Schema['usage_days']>
export type ProjectDayRow = Selectable<Schema['project_days']>
export type ReservationRow = Selectable<Schema['reservations']>
export type ProjectedSpendRow = Selectable<Schema['batch_projected_spend']>
export type CrossingRow = Selectable<Schema['limit_crossings']>
export type UploadRow = Selectable<Schema['uploads']>
export type UploadPartRow = Selectable<Schema['upload_parts']>
export type LaneReportRow = Selectable<Schema['lane_reports']>
export type ServerHourRow = Selectable<Schema['server_hours']>
export type ConsoleSessionRow = Selectable<Schema['console_sessions']>
export type BatchStatisticsRow = Selectable<Schema['batch_statistics']>

export const MESSAGE_BATCHES = `endpoint = '/v1/messages' AND deleted_at IS NULL`
const OPEN = `status IN ('validating', 'queued', 'in_progress', 'cancelling')`

/** Partial ones keep what is claimed often small, however much is finished. */
export const INDEXES: Readonly<Record<string, Index>> = {
  api_keys_listed: { table: 'api_keys', on: 'project_id, id' },
  files_listed: { table: 'files', on: 'project_id, id', where: 'deleted_at IS NULL' },
  files_expiring: { table: 'files', on: 'expires_at', where: 'deleted_at IS NULL' },
  files_stored: { table: 'files', on: 'project_id, bytes', where: 'deleted_at IS NULL' },
  files_listed_by_purpose: {
    table: 'files',
    on: 'project_id, purpose, id',
    where: 'deleted_at IS NULL',
  },
  batches_listed: { table: 'batches', on: 'project_id, id' },
  batches_listed_by_status: { table: 'batches', on: 'project_id, status, id' },
  batches_open: { table: 'batches', on: 'expires_at', where: OPEN },
  batches_by_input: { table: 'batches', on: 'input_file_id' },
  batches_open_by_input: { table: 'batches', on: 'input_file_id', where: OPEN },
  batches_cancelling: { table: 'batches', on: 'id', where: "status = 'cancelling'" },
  batches_input_deleted: { table: 'batches', on: 'status, id', where: 'input_deleted_at IS NOT NULL' },
  batches_open_listed: { table: 'batches', on: 'project_id, id', where: OPEN },
  batches_by_name: { table: 'batches', on: 'project_id, name, id' },
  batches_by_lines: { table: 'batches', on: 'project_id, total, id' },
  batches_by_failed: { table: 'batches', on: 'project_id, run_failed, id' },
  batches_by_cost: { table: 'batches', on: 'project_id, cost_nanos, id' },
  batches_by_deadline: { table: 'batches', on: 'project_id, expires_at, id' },
  batches_by_speed: { table: 'batches', on: 'project_id, speed, id' },
  message_batches_listed: { table: 'batches', on: 'project_id, id', where: MESSAGE_BATCHES },
  chunks_ready: { table: 'chunks', on: 'project_id, deadline, batch_id, idx', where: "state = 'ready'" },
  chunks_urgent: { table: 'chunks', on: 'deadline, batch_id, idx', where: "state = 'ready'" },
  chunks_leased: { table: 'chunks', on: 'worker_id', where: "state = 'leased'" },
  chunks_parked: { table: 'chunks', on: 'run_at', where: "state = 'parked'" },
  chunks_unsealed: { table: 'chunks', on: 'batch_id, idx', where: "state <> 'sealed'" },
  chunks_of_entity: {
    table: 'chunks',
    on: 'project_id, entity, deadline, batch_id, idx',
    where: "state = 'ready'",
  },
  chunks_sealed: { table: 'chunks', on: 'sealed_at, batch_id, first_line', where: 'sealed_at IS NOT NULL' },
  chunks_by_line: { table: 'chunks', on: 'batch_id, first_line' },
  remote_batches_of_chunk: { table: 'remote_batches', on: 'batch_id, idx' },
  remote_batches_due: { table: 'remote_batches', on: 'poll_at', where: 'poll_at IS NOT NULL' },
  remote_batches_open: { table: 'remote_batches', on: 'remote_id', where: "state = 'open'" },
  journal_parts_by_blob: { table: 'journal_parts', on: 'journal_blob' },
  tasks_ready: { table: 'tasks', on: 'run_at, id', where: "state = 'ready'" },
  tasks_leased: { table: 'tasks', on: 'worker_id', where: "state = 'leased'" },
  tasks_by_project: { table: 'tasks', on: 'kind, large, project_id, run_at, id', where: "state = 'ready'" },
  tasks_by_subject: { table: 'tasks', on: 'subject' },
  blobs_pending_deletion: {
    table: 'blobs',
    on: 'deletion_pending_since',
    where: 'deletion_pending_since IS NOT NULL',
  },
  http_requests_answered: { table: 'http_requests', on: 'created, id' },
  http_requests_listed: { table: 'http_requests', on: 'project_id, id' },
  idempotency_keys_expiring: { table: 'idempotency_keys', on: 'expires' },
  limits_listed: { table: 'limits', on: 'project_id, id' },
  limits_of_subject: { table: 'limits', on: 'project_id, subject, scope, id' },
  ledger_entries_of_batch: { table: 'ledger_entries', on: 'project_id, batch_id, idx' },
  reservations_of_entity: { table: 'reservations', on: 'project_id, entity' },
  batch_projected_spend_of_entity: { table: 'batch_projected_spend', on: 'project_id, entity' },
  events_listed: { table: 'events', on: 'project_id, id' },
  events_listed_by_type: { table: 'events', on: 'project_id, type, id' },
  events_by_age: { table: 'events', on: 'created' },
  webhooks_of_project: { table: 'webhooks', on: 'project_id, id', where: 'batch_id IS NULL' },
  webhooks_of_batch: {
    table: 'webhooks',
    on: 'project_id, batch_id, id',
    where: 'batch_id IS NOT NULL',
  },
  deliveries_listed: { table: 'deliveries', on: 'webhook_id, status, id' },
  deliveries_by_event: { table: 'deliveries', on: 'event_id' },
  deliveries_of_webhook: { table: 'deliveries', on: 'webhook_id, id' },
  console_sessions_expiring: { table: 'console_sessions', on: 'expires' },
  console_sessions_of_key: { table: 'console_sessions', on: 'key_id, kind, created' },
  uploads_listed: { table: 'uploads', on: 'project_id, id' },
  uploads_expiring: { table: 'uploads', on: 'expires_at', where: "status = 'pending'" },
  uploads_pending: { table: 'uploads', on: 'project_id', where: "status = 'pending'" },
  upload_parts_listed: { table: 'upload_parts', on: 'upload_id, id' },
  upload_parts_by_blob: { table: 'upload_parts', on: 'blob' },
}
