// The tables: the types of rows for queries, and the definitions for migrations (migrate.ts). Times are Unix
// milliseconds, money is nano-dollars, JSON is text: the same columns on every database. No table has a row per line. A
// table is listed after the tables that it refers to.
import type { Generated, Insertable, Selectable } from 'kysely'
import type { CompatMode } from '../domain/api-key.ts'
import { type BatchStatus, type DedupeMode, OPEN_STATUSES, type RemoteBatchState } from '../domain/batch.ts'
import type { BatchEndpoint } from '../domain/endpoint.ts'
import type { EventType } from '../domain/event.ts'
import type { FilePurpose, FileStatus, UploadStatus } from '../domain/file.ts'
import { recordOf } from '../domain/json-record.ts'
import type { LimitAction, LimitMetric, LimitScope, LimitWindow } from '../domain/limit.ts'
import { BATCH_SUMS, DAY_SUMS, LINE_SUMS } from '../domain/line-sums.ts'
import { AMOUNTS } from '../domain/money.ts'
import { PROMPT_SUMS } from '../domain/tokens.ts'
import type { DeliveryStatus } from '../wire/event.ts'

// The traits of a column.

interface Traits {
  isKey?: true
  isNullable?: true
  isUnique?: true
  initial?: string | number
  /** The table whose `id` the column holds. */
  references?: string
  /** The number of the migration that adds the column; 1 if not given. */
  since?: number
}

/** A column; `Stored` is its type for Kysely. */
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

  /** Makes the column part of the primary key, in the order of columns. */
  key(): Column<Stored> {
    return this.#with({ isKey: true })
  }

  optional(): Column<Generated<Stored | null>> {
    return this.#with({ isNullable: true })
  }

  /** Sets the value of an inserted row without one. */
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
  /** The indexed columns, as SQL. */
  on: string
  /** The condition of a partial index, as SQL. */
  where?: string
  since?: number
}

/** The state of a chunk: `ready` to be claimed, `leased` to a worker, `parked` until `run_at`, `sealed` for good. */
type ChunkState = 'ready' | 'leased' | 'parked' | 'sealed'
export const TASK_KINDS = [
  'validate',
  'plan',
  'purge',
  'deliver',
  'fetch',
  'make',
  'export',
  'announce',
] as const
export type TaskKind = (typeof TASK_KINDS)[number]
export type SessionRole = 'worker' | 'api'

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
    /** The SHA-256 of the secret, hex. */
    secret_sha256: text(),
    /** The scopes as a JSON array. */
    scopes: text(),
    created: whole(),
    revoked_at: whole().optional(),
    /** The time of last use, exact to about a minute. */
    last_used_at: whole().optional(),
    /** The form of answers to calls that do not ask for one; null: the API's own. */
    compat: text<CompatMode>().optional(),
    /** JSON of Retention: the longest for the key's batches; null: the plan's. */
    retention: text().optional(),
    /** The issuer of the tokens with the row's subject; null for keys and persons. */
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
    /** The first invalid lines as a JSON array. */
    errors: text().optional(),
    created: whole(),
    expires_at: whole(),
    /** The time of deletion; the content is deleted later. */
    deleted_at: whole().optional(),
    /** The blob of an upload's content. Result files have none: they are manifests over `batch_id`'s chunks. */
    content_blob: text().optional(),
    /** The blob of the index: chunk spans and sums by (model, entity). */
    index_blob: text().optional(),
    /** The blob with the index of custom_ids (jsonl/custom-ids.ts); null before validation. */
    ids_blob: text().optional(),
    batch_id: text().optional(),
    part: text<'output' | 'error'>().optional(),
    /** JSON of FileSource (files.ts) for an input from a bucket. */
    source: text().optional(),
    /** 1: the content is deleted by its batch's retention, and callers get content_not_kept. */
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
    /** The caller's metadata as a JSON object. */
    metadata: text().optional(),
    /** The entity of the header X-Service-Entity, for lines without one in their own or the batch's metadata. */
    header_entity: text().optional(),
    language: text().optional(),
    total: whole(),
    completed: counter(),
    ...recordOf(BATCH_SUMS, (name) => counter().since(LINE_SUMS[name].batches)),
    /** Lines that ended as batch_expired, which decide whether the batch ends as expired or completed. */
    expired_lines: counter(),
    /** The number of failed lines that were sent. */
    run_failed: counter(),
    chunk_count: counter(),
    chunks_sealed: counter(),
    output_bytes: counter(),
    output_lines: counter(),
    error_bytes: counter(),
    error_lines: counter(),
    /** The time at which the input file was deleted while lines were still to be sent. */
    input_deleted_at: whole().optional(),
    created: whole(),
    in_progress_at: whole().optional(),
    completed_at: whole().optional(),
    failed_at: whole().optional(),
    expired_at: whole().optional(),
    cancelling_at: whole().optional(),
    cancelled_at: whole().optional(),
    expires_at: whole(),
    /** The last sample of the rate: its time (null until the first line ended), the ended lines then, and the rate. */
    rate_sampled_at: whole().optional(),
    rate_lines: counter(),
    lines_per_s: double().optional(),
    /** The last sampled rate, or after the end the mean of the run; 0 before the first sample. Lists sort by it. */
    speed: double().or(0),
    /** The retention of the result files in ms, if shorter than the plan's. */
    output_expires_after_ms: whole().optional(),
    /** JSON of Retention: that of the batch's content; null: as other files. */
    retention: text().optional(),
    /** JSON of Fetched: the results that callers have fetched; only with `retention`. */
    fetched: text().optional(),
    /** The mode in which identical requests are sent once; null: none. */
    dedupe: text<DedupeMode>().optional(),
    /** The W3C trace context of the call that created the batch. */
    traceparent: text().optional(),
    /** The time at which the chunks were made. */
    queued_at: whole().optional(),
    /** JSON array: problems of a failed batch's first lines, or waiting reasons of an expired batch's lines. */
    errors: text().optional(),
    /** The time before which no line is sent (Unix ms). */
    start_after: whole().optional(),
    /** The time of the pause (Unix ms); null: not paused. */
    paused_at: whole().optional(),
    /** The models of the lines as a JSON array; null when there are too many. */
    models: text().optional(),
    input_filename: text().optional(),
    /** The name by which lists are sorted. */
    name: text().or(''),
    /** URLs in buckets: of the input, and of the folder for the results after the end. */
    input_url: text().optional(),
    output_url: text().optional(),
    output_url_status: text<DeliveryStatus>().optional(),
    /** The reason for which the results are not written yet, or never. */
    output_url_error: text().optional(),
    /** The time at which the batch was deleted as a message batch. */
    deleted_at: whole().optional(),
    /** Lines that repeat an earlier request but are sent, since their answers depend on chance. */
    unshared_lines: integer().or(0),
    /** JSON of Reask: the answers that are asked for again; null: none. */
    reask: text().optional(),
    /** `file`: lines are sent in the order of the input; null: in the order that suits servers' prefix caches. */
    line_order: text<'file'>().optional(),
    /** Bytes of a prompt's beginning by which lines are ordered; 0: determined for each chunk. */
    prefix_bytes: integer().or(0),
    /** The number of waiting lines up to which a worker opens chunks if equal beginnings are scattered; 0: few. */
    lines_ahead: integer().or(0),
    /** 1 for a batch that gathers single requests (intake/gathered-requests.ts). */
    is_gathered: integer().or(0),
    /** The end of gathering (Unix ms); 0 while the lines become a file; null: the batch gathers none. */
    gathers_until: whole().optional(),
    /** A counter that each cancellation of single lines raises. */
    line_cancels: integer().or(0),
    /** 1 if webhooks are sent the ends of its single requests. */
    has_line_events: integer().or(0),
  },
  chunks: {
    batch_id: text().key().references('batches'),
    idx: whole().key(),
    project_id: text(),
    state: text<ChunkState>(),
    /** Raised by every claim; each commit names the epoch of its claim. */
    epoch: counter(),
    /** Raised by every commit under a lease; each commit names the previous number. */
    commit_seq: counter(),
    /** The number of the last effective reservation under the lease; the next one names it. */
    reservation_seq: counter(),
    /** The error with which unfinished lines end because results could not be recorded; mostly null. */
    record_error: text().optional(),
    worker_id: text().optional(),
    run_at: counter(),
    parked_reason: text().optional(),
    /** JSON of the tries of unfinished lines when the chunk was parked last; null without any. */
    line_tries: text().optional(),
    /** The first lines with the same request by position (jsonl/first-lines.ts); null if no line has an earlier one. */
    first_lines: text().optional(),
    /** The model of all lines; null if there are several. */
    model: text().optional(),
    /** The entity of the batch; '' without one. */
    entity: text().or(''),
    /** The ID of the key that created the batch. */
    key_id: text().or(''),
    /** The time (Unix ms) by which chunks are served in order: the batch's expires_at, or earlier for what goes first. */
    deadline: whole(),
    first_line: whole(),
    line_count: whole(),
    byte_start: whole(),
    byte_end: whole(),
    /** The lines of the stretch that the chunk has (jsonl/chunk-lines.ts); null: consecutive ones. */
    lines: text().optional(),
    /** The first line of the stretch of the input that its chunk and others share; 0: its lines are consecutive. */
    stretch_line: whole().or(0),
    /** A worker that claims one of the chunks with this number claims all; 0: only this one. */
    claim_group: integer().or(0),
    /**
     * The blob with the input of this chunk alone, while its batch gathers requests, or until a chunk that shares a
     * stretch is sealed; null, or deleted: the batch's input.
     */
    input_blob: text().optional(),
    /** JSON of the numbers of lines that were cancelled one by one. */
    cancelled_lines: text().optional(),
    /** JSON of the numbers of its lines whose end is recorded as an event. */
    announced_lines: text().optional(),
    /** The number of lines in `announced_lines`. */
    announced: counter(),
    /** JSON of the numbers of its lines that were deleted as background responses. */
    deleted_lines: text().optional(),
    completed: counter(),
    failed: counter(),
    cost_nanos: counter(),
    output_blob: text().optional(),
    output_bytes: counter(),
    error_blob: text().optional(),
    error_bytes: counter(),
    audit_blob: text().optional(),
    /** The time of sealing; null before. */
    sealed_at: whole().optional(),
    /** The number of remote batches with lines of this chunk whose results are not recorded yet. */
    remote_batches: integer().or(0),
  },
  /** Remote batches, each made of lines of one chunk (store/remote-batches.ts). */
  remote_batches: {
    /** The ID, also used in the remote metadata, the file's name and the idempotency key. */
    id: text().key(),
    batch_id: text().references('batches'),
    idx: integer(),
    project_id: text(),
    model: text(),
    /** The name of the upstream among those of the model. */
    upstream: text(),
    state: text<RemoteBatchState>(),
    /** JSON of the lines as pairs [first, last] of line numbers. */
    lines: text(),
    /** JSON of the lines' reservation (RemoteReservation); null once it is released. */
    reserved: text().optional(),
    /** The UTC day under whose limits the lines were reserved, and to which they are charged; null: no limit. */
    day: whole().optional(),
    file_id: text().optional(),
    remote_id: text().optional(),
    output_file_id: text().optional(),
    error_file_id: text().optional(),
    /** The remote status at the last poll or at the end; `abandoned` for an abandoned batch. */
    status: text().optional(),
    /** The reason for which the batch failed, or its state is unknown. */
    detail: text().optional(),
    created: whole(),
    /** The time of the last attempt to create the batch (Unix ms). */
    creating_at: whole().optional(),
    /** The number of attempts to create the batch. */
    creations: integer().or(0),
    /** The time at which cancellation was requested. */
    cancelled_at: whole().optional(),
    /** The time since which the batch API has not answered. */
    failing_since: whole().optional(),
    /** The time of the next poll; null: no more polls. */
    poll_at: whole().optional(),
    line_count: integer(),
    /** The number of answered lines, and their cost here. */
    answered: integer().or(0),
    cost_nanos: counter(),
    /** JSON of the batch API's own final counts and cost. */
    remote_report: text().optional(),
  },
  /** Parts of journal blobs, with finished lines of an open chunk. */
  journal_parts: {
    batch_id: text().key(),
    idx: whole().key(),
    journal_blob: text().key(),
    byte_start: whole(),
    byte_end: whole(),
    /** JSON of the lines' sums. The column is nullable, but no released version left it out. */
    sums: new Column<string>('text', { isNullable: true }),
  },
  tasks: {
    id: text().key(),
    kind: text<TaskKind>(),
    /** The ID of the task's object. */
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
  /** Sessions of worker processes. A session's leases are valid until `lease_until`, by the database's clock. */
  workers: {
    id: text().key(),
    /** The role of the process: API processes have sessions too, so that admin commands see them. */
    role: text<SessionRole>().or('worker'),
    lease_until: whole(),
    started: whole(),
    /** The duration of the lease; `lease_until` minus this is its last renewal. */
    lease_ms: whole().optional(),
  },
  /** Sealed blobs, with their wrapped keys, so that a rotation of the master key rewrites rows, not blobs. */
  blobs: {
    key: text().key(),
    project_id: text(),
    wrapped_key: text(),
    bytes: whole(),
    created: whole(),
    /** The time since which the blob is pending deletion: its wrapped key is destroyed, its bytes are deleted soon. */
    deletion_pending_since: whole().optional(),
  },
  /** Authenticated HTTP calls: their outcome, and the response to a call that changes something. */
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
    /** The response as JSON; for POST and DELETE only. */
    response: text().optional(),
    /** The W3C trace context that the caller sent. */
    traceparent: text().optional(),
  },
  idempotency_keys: {
    project_id: text().key(),
    route: text().key(),
    key: text().key(),
    /** The SHA-256 of the parts of the call that a retry has to repeat. */
    fingerprint: text(),
    state: text<'in_progress' | 'done'>(),
    request_id: text(),
    status: integer().optional(),
    response: text().optional(),
    created: whole(),
    expires: whole(),
  },
  /** Rejected calls without a valid key. */
  anonymous_requests: {
    id: text().key(),
    method: text(),
    path: text(),
    status: integer(),
    created: whole(),
    duration_ms: integer(),
    /** The address of the caller, as the server saw it. */
    address: text(),
    /** The key ID that the call named, whether the key exists or not. */
    key_id: text().optional(),
  },
  rate_buckets: {
    key_id: text().key(),
    /** The time at which the bucket will be full, by the database's clock, in Unix µs. */
    full_at: whole(),
    /** The number of calls granted to the last call that asked. */
    granted: whole(),
  },
  limits: {
    id: text().key(),
    project_id: text().references('projects'),
    scope: text<LimitScope>(),
    /** The entity, the entity type or the key, as the scope says; empty for the whole project. */
    subject: text(),
    /** The only model whose lines count; empty: all models. */
    model: text().or(''),
    metric: text<LimitMetric>(),
    amount: whole(),
    window: text<LimitWindow>(),
    action: text<LimitAction>(),
    description: text().optional(),
    /** The thresholds as a JSON array of fractions. */
    notify_at: text(),
    created: whole(),
  },
  /** Versions of projects' limits, raised by each change: reservations under another version are checked again. */
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
    /** The type of the entity; empty without one. */
    entity_type: text(),
    ...recordOf(DAY_SUMS, (name) => counter().since(LINE_SUMS[name].usage_days)),
  },
  /** Settled usage by day, summed over all entities, for limits without an entity. */
  project_days: {
    project_id: text().key(),
    day: whole().key(),
    key_id: text().key(),
    model: text().key(),
    ...recordOf(AMOUNTS, whole),
  },
  /** Ledger entries, one per commit, chunk, entity and day; never changed. */
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
    ...recordOf(AMOUNTS, whole),
  },
  /** Projected spend of open batches by model: of all lines, with an empty `entity`, and of each named entity. */
  batch_projected_spend: {
    batch_id: text().key(),
    entity: text().key(),
    model: text().key(),
    project_id: text(),
    key_id: text(),
    ...recordOf(AMOUNTS, whole),
  },
  /** Crossed thresholds, once per window and spender. */
  limit_crossings: {
    limit_id: text().key(),
    /** The entity; empty for the whole project. */
    entity: text().key(),
    window_start: whole().key(),
    threshold: double().key(),
    created: whole(),
  },
  /** Sums of prompts by server reports: their bytes in the input and their tokens, also of long prompts alone. */
  prompt_statistics: {
    model: text().key(),
    ...recordOf(PROMPT_SUMS, whole),
  },
  events: {
    id: text().key(),
    project_id: text().references('projects'),
    type: text<EventType>(),
    /** The event's data as a JSON object. */
    data: text(),
    created: whole(),
  },
  webhooks: {
    id: text().key(),
    project_id: text().references('projects'),
    url: text(),
    description: text().optional(),
    /** The event types as a JSON array; null: all. */
    event_types: text().optional(),
    /** The only batch whose events are sent; null: the events of the project. */
    batch_id: text().references('batches').optional(),
    /** The single request of that batch whose end it is sent; null: it is sent the events of the batch. */
    line: integer().optional(),
    /** The signing secret, wrapped by the master key. */
    wrapped_secret: text(),
    /** The secret before the last rotation, which also signs until `previous_until`. */
    previous_secret: text().optional(),
    previous_until: whole().optional(),
    /** The time at which the owner, or a 410 of the receiver, disabled the webhook. */
    disabled_at: whole().optional(),
    disabled_reason: text().optional(),
    created: whole(),
  },
  /** Deliveries of events to webhooks; a pending one has a task. */
  deliveries: {
    id: text().key(),
    webhook_id: text().references('webhooks'),
    event_id: text().references('events'),
    status: text<DeliveryStatus>(),
    /** The time of queueing or replay, from which the time of retries counts. */
    started: whole(),
    attempts: counter(),
    next_attempt_at: whole().optional(),
    last_attempt_at: whole().optional(),
    last_status: whole().optional(),
    /** The error of the last attempt, with the beginning of the receiver's response. */
    last_error: text().optional(),
    created: whole(),
  },
  database_properties: {
    name: text().key(),
    value: text(),
  },
  /** Reports of models whose servers are unavailable, throttle a worker, or fail on lines of some batches. */
  lane_reports: {
    worker_id: text().key(),
    model: text().key(),
    state: text<'starting' | 'unavailable' | 'live_traffic' | 'throttled' | 'failing'>(),
    since: whole(),
    /** JSON of UpstreamErrors (workers.ts). */
    details: text().optional(),
  },
  /** Sessions of browsers that are signed in with a key, and one-time links for signing in. */
  console_sessions: {
    token_sha256: text().key(),
    kind: text<'session' | 'link'>(),
    key_id: text().references('api_keys'),
    created: whole(),
    /** The expiry, Unix ms. */
    expires: whole(),
  },
  /** Statistics of batches, updated with their commits; both columns are bounded (results/batch-statistics.ts). */
  batch_statistics: {
    batch_id: text().key().references('batches'),
    /** JSON of the failed lines by code and message. */
    errors: text(),
    /** JSON of the finished lines by time. */
    timeline: text(),
  },
  /** The state of workers and their model servers, replaced every few seconds; deleted with the session. */
  worker_reports: {
    worker_id: text().key(),
    reported_at: whole(),
    /** JSON of WorkerReport (workers.ts). */
    report: text(),
  },
  /** The work of model servers by clock hour (Unix ms), kept for a day; updated with reports every few seconds. */
  server_hours: {
    model: text().key(),
    upstream: text().key(),
    hour: whole().key(),
    /** The number of answered attempts, and the sum of their durations. */
    answered: counter(),
    answered_ms: counter(),
    /** The number of failed or throttled attempts, and the sum of their durations. */
    missed: counter(),
    missed_ms: counter(),
  },
  /** Uploads in parts; a completed one has a file. */
  uploads: {
    id: text().key(),
    project_id: text().references('projects'),
    status: text<UploadStatus>(),
    filename: text(),
    mime_type: text(),
    /** The announced size of all parts. */
    bytes: whole(),
    /** The size of all parts now, including repeated ones. */
    part_bytes: counter(),
    /** The requested time from creation to expiry of the file, if shorter than the plan's. */
    file_expires_after_ms: whole().optional(),
    file_id: text().optional(),
    /** The number of the last attempt to complete the upload. */
    completion_attempt: counter(),
    /** The end of the attempt's lease by the database's clock, renewed while it runs; null after a failure. */
    completing_until: whole().optional(),
    /** The hash of the completing call's parameters. */
    completion_order: text().optional(),
    /** JSON of the error with which the attempt ended. */
    completion_failure: text().optional(),
    created: whole(),
    /** The time at which a pending upload and its parts are deleted. */
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
  /** Models of which a project sends no lines. */
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

/** The primary key columns of a table, in order. */
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
const OPEN = `status IN (${OPEN_STATUSES.map((status) => `'${status}'`).join(', ')})`

/** The indexes. Partial ones keep frequent claims fast, however many rows are finished. */
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
