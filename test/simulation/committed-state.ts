// Reads the database on a connection of its own, and says what a transaction has changed of what the invariants are about.
import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { BATCH_STATUSES, type BatchStatus } from '../../src/domain/batch.ts'

export interface ChunkState {
  /** Its batch and its index. */
  key: string
  state: string
  epoch: number
  worker_id: string | null
  /** Its finished lines and their cost. */
  counted: string
}

export interface BatchState {
  id: string
  status: BatchStatus
  hasStarted: boolean
  paused: boolean
}

/** A part of a journal that a transaction has committed; `wrapped_key` is null if its blob has no row. */
export interface CommittedPart {
  batch_id: string
  idx: number
  journal_blob: string
  byte_start: number
  byte_end: number
  wrapped_key: string | null
  bytes: number
}

export interface Change<T> {
  before: T | undefined
  after: T
}

export interface Changes {
  sessions: readonly string[]
  batches: readonly Change<BatchState>[]
  chunks: readonly Change<ChunkState>[]
  parts: readonly CommittedPart[]
}

const NOTHING: Changes = { sessions: [], batches: [], chunks: [], parts: [] }

export class CommittedState {
  readonly connection: DatabaseSync
  readonly #version: StatementSync
  readonly #sessionRows: StatementSync
  readonly #batchRows: StatementSync
  readonly #chunkRows: StatementSync
  readonly #partRows: StatementSync
  readonly #sessionRow: StatementSync
  readonly #pausedModels: StatementSync
  #seen: unknown = null
  readonly #sessions = new Set<string>()
  readonly batches = new Map<string, BatchState>()
  readonly chunks = new Map<string, ChunkState>()
  /** Projects and models that are paused. */
  pausedModels: ReadonlySet<string> = new Set()
  readonly #parts = new Set<string>()

  constructor(path: string) {
    this.connection = new DatabaseSync(path, { readOnly: true })
    const prepare = (sql: string): StatementSync => this.connection.prepare(sql)
    this.#version = prepare('PRAGMA data_version')
    this.#sessionRows = prepare('SELECT id FROM workers')
    this.#batchRows = prepare('SELECT id, status, in_progress_at, paused_at FROM batches')
    this.#chunkRows = prepare(
      'SELECT batch_id, idx, state, epoch, worker_id, completed, failed, cost_nanos FROM chunks',
    )
    this.#partRows = prepare(
      `SELECT batch_id, idx, journal_blob, byte_start, byte_end, wrapped_key, bytes
       FROM journal_parts LEFT JOIN blobs ON blobs.key = journal_blob ORDER BY journal_parts.rowid`,
    )
    this.#sessionRow = prepare('SELECT 1 FROM workers WHERE id = ?')
    this.#pausedModels = prepare('SELECT project_id, model FROM paused_models')
    for (const rows of [this.#sessionRows, this.#batchRows, this.#chunkRows, this.#partRows])
      rows.setReturnArrays(true)
  }

  isLive(session: string): boolean {
    return this.#sessionRow.get(session) !== undefined
  }

  /** What has changed since the last call. */
  changes(): Changes {
    const version = this.#version.get()?.data_version
    if (version === this.#seen) return NOTHING
    this.#seen = version
    this.pausedModels = new Set(this.#pausedModels.all().map((row) => `${row.project_id} ${row.model}`))
    return {
      sessions: this.#newSessions(),
      batches: this.#changedBatches(),
      chunks: this.#changedChunks(),
      parts: this.#newParts(),
    }
  }

  close(): void {
    this.connection.close()
  }

  #newSessions(): string[] {
    const opened: string[] = []
    for (const [id] of rowsOf(this.#sessionRows.all())) {
      if (this.#sessions.has(String(id))) continue
      this.#sessions.add(String(id))
      opened.push(String(id))
    }
    return opened
  }

  #changedBatches(): Change<BatchState>[] {
    const changed: Change<BatchState>[] = []
    for (const [id, text, in_progress_at, paused_at] of rowsOf(this.#batchRows.all())) {
      const before = this.batches.get(String(id))
      const hasStarted = in_progress_at !== null
      const paused = paused_at !== null
      if (before && before.status === text && before.hasStarted === hasStarted && before.paused === paused)
        continue
      const status = BATCH_STATUSES.find((one) => one === text)
      if (!status) throw new Error(`batch ${id} is ${text}`)
      const after = { id: String(id), status, hasStarted, paused }
      this.batches.set(after.id, after)
      changed.push({ before, after })
    }
    return changed
  }

  #changedChunks(): Change<ChunkState>[] {
    const changed: Change<ChunkState>[] = []
    for (const [batch_id, idx, state, epoch, worker, completed, failed, cost] of rowsOf(
      this.#chunkRows.all(),
    )) {
      const key = `${batch_id} ${idx}`
      const before = this.chunks.get(key)
      const counted = `${completed} ${failed} ${cost}`
      const worker_id = worker === null ? null : String(worker)
      if (before && before.state === state && before.epoch === epoch)
        if (before.worker_id === worker_id && before.counted === counted) continue
      const after = { key, state: String(state), epoch: Number(epoch), worker_id, counted }
      this.chunks.set(key, after)
      changed.push({ before, after })
    }
    return changed
  }

  #newParts(): CommittedPart[] {
    const fresh: CommittedPart[] = []
    for (const [batch_id, idx, journal, byte_start, byte_end, wrapped_key, bytes] of rowsOf(
      this.#partRows.all(),
    )) {
      const key = `${batch_id} ${idx} ${journal}`
      if (this.#parts.has(key)) continue
      this.#parts.add(key)
      fresh.push({
        batch_id: String(batch_id),
        idx: Number(idx),
        journal_blob: String(journal),
        byte_start: Number(byte_start),
        byte_end: Number(byte_end),
        wrapped_key: wrapped_key === null ? null : String(wrapped_key),
        bytes: Number(bytes),
      })
    }
    return fresh
  }
}

/** Rows of a statement that returns arrays. */
function rowsOf(rows: unknown[]): unknown[][] {
  return rows.filter(Array.isArray)
}
