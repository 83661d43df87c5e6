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

/** For each status, the statuses that may follow it. */
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

/** A terminal status is never left. A status that another version has is none. */
export function isTerminal(status: BatchStatus): boolean {
  return BATCH_TRANSITIONS[status]?.length === 0
}

/** The statuses of a batch that has not ended. */
export const OPEN_STATUSES: readonly BatchStatus[] = BATCH_STATUSES.filter((status) => !isTerminal(status))

/** The effect of a cancel: `move` to cancelling, return the `same` object again, or `refuse`. */
export function cancelOutcome(status: BatchStatus): 'move' | 'same' | 'refuse' {
  if (canTransition(status, 'cancelling')) return 'move'
  return status === 'cancelling' || status === 'cancelled' ? 'same' : 'refuse'
}

/** Why lines of a batch are no longer sent; each is the error code those lines end with. */
export type StopReason = 'batch_expired' | 'batch_cancelled' | 'input_file_deleted'

/** Why no more lines of this batch are sent; null while they are. */
export function stopReason(
  batch: { status: BatchStatus; input_deleted_at: number | null; expires_at: number },
  now: number,
): StopReason | null {
  if (batch.status === 'cancelling') return 'batch_cancelled'
  if (now >= batch.expires_at) return 'batch_expired'
  return batch.input_deleted_at === null ? null : 'input_file_deleted'
}

/** What answers are asked for again for; the reasons of such attempts. */
export const ANSWER_FAULTS = ['cut_off', 'not_json', 'not_schema'] as const
export type AnswerFault = (typeof ANSWER_FAULTS)[number]

export const isAnswerFault = (reason: string | undefined): boolean =>
  reason !== undefined && ANSWER_FAULTS.some((fault) => fault === reason)

/** The codes of lines that were to be sent and were not. */
const NOT_RUN: ReadonlySet<string> = new Set([
  'batch_expired',
  'batch_cancelled',
  'input_file_deleted',
  'usage_limit_exceeded',
])

/** Whether a failed line was never sent, so that the line is not at fault. */
export function isNotRun(code: string | undefined, attempts: number): boolean {
  return attempts === 0 && code !== undefined && NOT_RUN.has(code)
}

/**
 * The status of a batch whose last chunk was sealed: one that was not queued yet has no line that can run. `unfinished`
 * counts lines that ended with batch_expired.
 */
export function finalStatus(
  status: BatchStatus,
  unfinished: number,
): 'completed' | 'cancelled' | 'expired' | 'failed' {
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

// Whether identical requests of one batch are sent once. `repeatable`: those alone whose answer does not depend on
// chance. `all`: whatever the requests are.
export type DedupeMode = 'repeatable' | 'all'

/** `dedupe` of a request that creates a batch. */
export function dedupeMode(wanted: boolean | 'force' | null | undefined): DedupeMode | null {
  if (wanted === 'force') return 'all'
  return wanted === true ? 'repeatable' : null
}

/** The mode as the API shows it. */
export function shownDedupe(mode: DedupeMode): true | 'force' {
  return mode === 'all' ? 'force' : true
}

/**
 * How often an answer is asked for again that violates the JSON Schema of its request, or is cut by length: with
 * another seed, or with the answer and its defect as messages.
 */
export interface Reask {
  max: number
  mode: (typeof REASK_MODES)[number]
}

export const REASK_MODES = ['repeat', 'repair'] as const
export const REASKS_MAX = 5

/** Reads the column `reask` of a batch. */
export function readReask(json: string | null): Reask | null {
  return json === null ? null : JSON.parse(json)
}

// A chunk is a run of consecutive lines of one input file: the unit that the database stores, that a worker leases
// and that is sealed into result blobs. Lines are stored in blobs only.

/** A chunk ends before the line that would exceed either limit; a line above the limit is a chunk of its own. */
export const CHUNK_LINES_MAX = 1000
export const CHUNK_BYTES_MAX = 8 * 1024 * 1024

/** Where a chunk's lines lie in the uploaded file. */
export interface ChunkSpan {
  /** Counts from 0 within the file; of a batch, in the order in which chunks are claimed. */
  index: number
  /** The line number of its first request in the uploaded file, from 1; blank lines have numbers too. */
  first_line: number
  /** How many requests it holds; blank lines are not counted. */
  line_count: number
  /** Byte offsets into the uploaded file: `byte_start` inclusive, `byte_end` exclusive. */
  byte_start: number
  byte_end: number
  /** The model of all its lines; null when they name several, or none. */
  model: string | null
}

// A batch at a batch API. `intended`: it is announced, and a file
// may have been uploaded. `creating`: it may have been created. `open`: it is there. `ended`: its results may be read.
// `recorded`: nothing more of it will be recorded here. `abandoned`: it was given up, and may go on there. `done`: nothing
// is left to do.

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
  // `abandoned`: that it is there was stored after its worker had stopped waiting for that, and given it up.
  open: ['ended', 'abandoned'],
  ended: ['recorded', 'abandoned'],
  recorded: ['done'],
  abandoned: ['recorded', 'done'],
  done: [],
}

/** States in which lines are at the batch API, or have results there that are not recorded. */
export const UNRECORDED_STATES = [
  'intended',
  'creating',
  'open',
  'ended',
] as const satisfies RemoteBatchState[]

/** Throws if the table does not have the transition: a mistake of this program. */
export function assertRemoteTransition(id: string, from: RemoteBatchState, to: RemoteBatchState): void {
  if (!REMOTE_BATCH_TRANSITIONS[from].includes(to))
    throw new Error(`the remote batch ${id} cannot become ${to} from ${from}`)
}
