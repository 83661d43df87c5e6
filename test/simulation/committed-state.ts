// What is committed of what the invariants are about, kept by the trace (trace.ts), and what a transaction has changed of it.
import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { type Change, type TracedBatch, type TracedChunk, type TracedPart, traceReader } from './trace.ts'

/** A part of a journal that a transaction has committed; `wrapped_key` is null if its blob has no row. */
export interface CommittedPart extends TracedPart {
  wrapped_key: string | null
  bytes: number
}

/** A row before and after a transaction. */
export interface Changed<T> {
  before: T
  after: T
}

export interface Changes {
  /** Each change of a row, in order. */
  steps: readonly Change[]
  /** New ones. */
  sessions: readonly string[]
  parts: readonly CommittedPart[]
  /** Not new ones. */
  batches: readonly Changed<TracedBatch>[]
  chunks: readonly Changed<TracedChunk>[]
}

export class CommittedState {
  readonly #connection: DatabaseSync
  readonly #trace: () => Change[]
  readonly #blobRow: StatementSync
  readonly #sessions = new Set<string>()
  readonly batches = new Map<string, TracedBatch>()
  /** By batch and index. */
  readonly chunks = new Map<string, TracedChunk>()
  /** Projects and models that are paused. */
  readonly pausedModels = new Set<string>()

  constructor(path: string) {
    this.#connection = new DatabaseSync(path, { readOnly: true })
    this.#trace = traceReader(this.#connection)
    this.#blobRow = this.#connection.prepare('SELECT wrapped_key, bytes FROM blobs WHERE key = ?')
  }

  isLive(session: string): boolean {
    return this.#sessions.has(session)
  }

  /** What has changed since the last call. */
  changes(): Changes {
    const steps = this.#trace()
    const sessions: string[] = []
    const parts: CommittedPart[] = []
    const batches = new Map<string, TracedBatch | undefined>()
    const chunks = new Map<string, TracedChunk | undefined>()
    for (const { kind, was, is } of steps) {
      if (kind === 'session') {
        if (is !== null) sessions.push(is.id)
        keep(this.#sessions, was?.id, is?.id)
      } else if (kind === 'paused_model') keep(this.pausedModels, was?.name, is?.name)
      else if (kind === 'batch') note(this.batches, batches, (is ?? was)?.id, is)
      else if (kind === 'chunk') note(this.chunks, chunks, (is ?? was)?.of, is)
      else if (kind === 'journal_part' && is !== null) parts.push(this.#withBlob(is))
    }
    return {
      ...{ steps, sessions, parts },
      batches: changed(this.batches, batches),
      chunks: changed(this.chunks, chunks),
    }
  }

  close(): void {
    this.#connection.close()
  }

  #withBlob(part: TracedPart): CommittedPart {
    const row = this.#blobRow.get(part.journal_blob)
    return { ...part, wrapped_key: row ? String(row.wrapped_key) : null, bytes: Number(row?.bytes) }
  }
}

function keep(set: Set<string>, was: string | undefined, is: string | undefined): void {
  if (was !== undefined) set.delete(was)
  if (is !== undefined) set.add(is)
}

/** `first`: by key, what a row was before its first change. */
function note<T>(rows: Map<string, T>, first: Map<string, T | undefined>, key = '', is: T | null): void {
  if (!first.has(key)) first.set(key, rows.get(key))
  if (is === null) rows.delete(key)
  else rows.set(key, is)
}

/** The rows that were there before and are there now. */
function changed<T>(rows: ReadonlyMap<string, T>, first: ReadonlyMap<string, T | undefined>): Changed<T>[] {
  const found: Changed<T>[] = []
  for (const [key, before] of first) {
    const after = rows.get(key)
    if (before !== undefined && after !== undefined) found.push({ before, after })
  }
  return found
}
