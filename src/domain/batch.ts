// The statuses of a batch, here and at a batch API, and the transitions between them. A test compares the tables with
// docs/state-machine.md. No other code decides whether a transition is allowed.
export const BATCH_STATUSES = [
  'validating',
  'failed',
  'queued',
  'in_progress',
  'completed',
  'expired',
  'cancelling',
  'cancelled',
] as const

export type BatchStatus = (typeof BATCH_STATUSES)[number]

/** The statuses that may follow each status. */
export const BATCH_TRANSITIONS: Record<BatchStatus, readonly BatchStatus[]> = {
  validating: ['queued', 'failed', 'cancelling', 'expired'],
  queued: ['in_progress', 'cancelling', 'expired'],
  in_progress: ['completed', 'cancelling', 'expired'],
  cancelling: ['cancelled'],
  completed: [],
  failed: [],
  expired: [],
  cancelled: [],
}

export function canTransition(from: BatchStatus, to: BatchStatus): boolean {
  return BATCH_TRANSITIONS[from].includes(to)
}

/** The statuses that `to` may follow: the condition of the SQL that changes the status. */
export function statusesBefore(to: BatchStatus): BatchStatus[] {
  return BATCH_STATUSES.filter((from) => canTransition(from, to))
}

/** Whether no other status follows. An unknown status, as another version has, is not terminal. */
export function isTerminal(status: BatchStatus): boolean {
  return BATCH_TRANSITIONS[status]?.length === 0
}

/** The time at which a batch ended, in the unit of its row or object; undefined before. */
export function endedAt(
  batch: Partial<Record<'completed_at' | 'failed_at' | 'expired_at' | 'cancelled_at', number | null>>,
): number | undefined {
  return batch.completed_at ?? batch.failed_at ?? batch.expired_at ?? batch.cancelled_at ?? undefined
}

/** The statuses of a batch that has not ended. */
export const OPEN_STATUSES: readonly BatchStatus[] = BATCH_STATUSES.filter((status) => !isTerminal(status))

/** The effect of a cancel: `move` to cancelling, return the `same` object again, or `refuse`. */
export function cancelOutcome(status: BatchStatus): 'move' | 'same' | 'refuse' {
  if (canTransition(status, 'cancelling')) return 'move'
  return status === 'cancelling' || status === 'cancelled' ? 'same' : 'refuse'
}

/** The reason for which unsent lines of a batch end, which is also their error code. */
export type StopReason = 'batch_expired' | 'batch_cancelled' | 'input_file_deleted'

/** The reason for which no more lines of a batch are sent; null while lines are sent. */
export function stopReason(
  batch: { status: BatchStatus; input_deleted_at: number | null; expires_at: number },
  now: number,
): StopReason | null {
  if (batch.status === 'cancelling') return 'batch_cancelled'
  if (now >= batch.expires_at) return 'batch_expired'
  return batch.input_deleted_at === null ? null : 'input_file_deleted'
}

const ENDINGS: Readonly<Record<StopReason | 'request_cancelled', 'cancelled' | 'expired'>> = {
  batch_expired: 'expired',
  batch_cancelled: 'cancelled',
  request_cancelled: 'cancelled',
  input_file_deleted: 'cancelled',
}

/** The status of a line that ended with this error code without a failure of its own; null for all other codes. */
export function endingOf(code: string): 'cancelled' | 'expired' | null {
  return Object.entries(ENDINGS).find(([name]) => name === code)?.[1] ?? null
}

/** Codes of errors by the limits or models of that time; the service of today judges the line anew. */
const OF_SERVICE: readonly string[] = ['usage_limit_exceeded', 'model_not_found', 'endpoint_not_supported']

/** Whether lines of a group of errors may succeed when they are retried unchanged. */
export function mayRetry({ code, retryable }: { code: string; retryable: boolean }): boolean {
  return retryable || OF_SERVICE.includes(code)
}

/** The faults of answers for which a request is sent again (`reask`). */
export const ANSWER_FAULTS = ['cut_off', 'not_json', 'not_schema'] as const
export type AnswerFault = (typeof ANSWER_FAULTS)[number]

export const isAnswerFault = (reason: string | undefined): boolean =>
  reason !== undefined && ANSWER_FAULTS.some((fault) => fault === reason)

/** The error codes of lines that were queued but never sent. */
const NOT_RUN: ReadonlySet<string> = new Set([
  'batch_expired',
  'batch_cancelled',
  'input_file_deleted',
  'usage_limit_exceeded',
])

/** Whether a failed line was never sent, so that its content is not the reason. */
export function isNotRun(code: string | undefined, attempts: number): boolean {
  return attempts === 0 && code !== undefined && NOT_RUN.has(code)
}

export type TerminalStatus = 'completed' | 'cancelled' | 'expired' | 'failed'

/**
 * The status of a batch whose last chunk was sealed: `failed` if it never was queued, since no line could run.
 * `unfinished` counts lines that ended with batch_expired.
 */
export function finalStatus(status: BatchStatus, unfinished: number): TerminalStatus {
  if (status === 'cancelling') return 'cancelled'
  if (status === 'validating') return 'failed'
  return unfinished > 0 ? 'expired' : 'completed'
}

/** The orders that a list of batches can have. */
export const BATCH_SORTS = [
  'created',
  'name',
  'status',
  'lines',
  'failed',
  'speed',
  'cost',
  'deadline',
] as const
export type BatchSort = (typeof BATCH_SORTS)[number]

// Whether identical requests of one batch are sent once: `repeatable` only those whose answer does not depend on
// chance, `all` every request.
export type DedupeMode = 'repeatable' | 'all'

/** The mode that the field `dedupe` of a create request asks for. */
export function dedupeMode(wanted: boolean | 'force' | null | undefined): DedupeMode | null {
  if (wanted === 'force') return 'all'
  return wanted === true ? 'repeatable' : null
}

/** The dedupe mode as the API shows it. */
export function shownDedupe(mode: DedupeMode): true | 'force' {
  return mode === 'all' ? 'force' : true
}

/**
 * The rule for asking again when an answer violates the JSON Schema of its request, or is cut by length: with another
 * seed, or with the answer and its fault as messages.
 */
export interface Reask {
  max: number
  mode: (typeof REASK_MODES)[number]
}

export const REASK_MODES = ['repeat', 'repair'] as const
export const REASKS_MAX = 5

export function readReask(json: string | null): Reask | null {
  return json === null ? null : JSON.parse(json)
}

// A chunk is a run of consecutive lines of one input file, or one of several that divide such a run, a stretch, among
// them: the unit that the database stores, that a worker leases and that is sealed into result blobs. Lines are stored
// in blobs only.

/** A chunk ends before the line that would exceed either limit; a line above the limit is a chunk of its own. */
export const CHUNK_LINES_MAX = 1000
export const CHUNK_BYTES_MAX = 8 * 1024 * 1024

/** The position of a chunk's lines in the uploaded file. */
export interface ChunkSpan {
  /** The index of the chunk, from 0: within a file by position, within a batch in the order of claims. */
  index: number
  /** The number of the first line in the uploaded file, from 1; blank lines have numbers too. */
  first_line: number
  /** The number of requests, without blank lines. */
  line_count: number
  /** Byte offsets into the uploaded file, of its stretch if it has one: `byte_start` inclusive, `byte_end` exclusive. */
  byte_start: number
  byte_end: number
  /** The model of all lines; null when they name several, or none. */
  model: string | null
  /** The lines of the stretch that the chunk has (jsonl/chunk-lines.ts); absent or null: consecutive ones. */
  lines?: string | null
  /** The first line of its stretch; absent or 0: it has no other lines between its own. */
  stretch_line?: number
  /** Chunks with the same number should be sent by one worker at a time; absent or 0: with any others. */
  claim_group?: number
}

// The states of a remote batch. `intended`: its row is stored, and a file may have been uploaded. `creating`: it may
// have been created. `open`: the batch API has confirmed it. `ended`: its results may be read. `recorded`: its results
// are stored here. `abandoned`: this service no longer waits for it, but it may still run. `done`: cleaned up.

export const REMOTE_BATCH_STATES = [
  'intended',
  'creating',
  'open',
  'ended',
  'recorded',
  'abandoned',
  'done',
] as const

export type RemoteBatchState = (typeof REMOTE_BATCH_STATES)[number]

export const REMOTE_BATCH_TRANSITIONS: Readonly<Record<RemoteBatchState, readonly RemoteBatchState[]>> = {
  intended: ['creating', 'recorded', 'abandoned', 'done'],
  creating: ['creating', 'open', 'recorded', 'abandoned'],
  // `abandoned`: the worker stopped waiting before the confirmation was stored.
  open: ['ended', 'abandoned'],
  ended: ['recorded', 'abandoned'],
  recorded: ['done'],
  abandoned: ['recorded', 'done'],
  done: [],
}

/** The states in which lines are at the batch API, or have results there that are not stored here. */
export const UNRECORDED_STATES = [
  'intended',
  'creating',
  'open',
  'ended',
] as const satisfies RemoteBatchState[]

/** Asserts that REMOTE_BATCH_TRANSITIONS allows a transition; throws for a programmer error. */
export function assertRemoteTransition(id: string, from: RemoteBatchState, to: RemoteBatchState): void {
  if (!REMOTE_BATCH_TRANSITIONS[from].includes(to))
    throw new Error(`the remote batch ${id} cannot become ${to} from ${from}`)
}
