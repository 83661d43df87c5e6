// Groups commits: all that arrive while one transaction runs share the next one. A failed transaction is retried until
// it succeeds, because its lines are paid for. If the database rejects a value in a group, each commit is tried alone,
// so that a commit that can never succeed does not block the others.
import { sleep } from '../domain/clock.ts'
import type { FinishRules } from '../lifecycle/batch.ts'
import { listJournalParts } from '../store/chunks.ts'
import type { BatchRow } from '../store/schema.ts'
import { type Ports, StatementRejected } from '../store/store.ts'
import type { Fresh } from './chunk-results.ts'
import { type ChunkCommit, type Committed, commitChunks } from './commit.ts'

/** The number of tries of a rejected commit alone, since a concurrent transaction may have caused the rejection. */
const REJECTIONS_MAX = 3

export type CommitRecord = ChunkCommit['record']

/**
 * The end of a commit. `accepted`: committed with this record. `lost`: another worker has the lease. `unwritable`: its
 * blobs had to be written again, which a damaged journal prevents. `rejected`: it can never be committed.
 */
export type CommitEnd =
  | { how: 'accepted'; record: CommitRecord }
  | { how: 'lost' | 'unwritable' }
  | { how: 'rejected'; error: StatementRejected }

interface Pending {
  commit: ChunkCommit
  /** The records of the commit's attempts, in order. */
  records: CommitRecord[]
  /** The time when the blobs were written, by the steady clock; -Infinity if they must be written again. */
  writtenAt: number
  /** Writes the blobs again under other keys; null if that is impossible. */
  rewrite: () => Promise<CommitRecord | null>
  done: (end: CommitEnd) => void
  failed: (error: unknown) => void
}

interface CommitQueueOptions extends Pick<Ports, 'store' | 'clock' | 'log'> {
  rules: FinishRules
  /** The age in ms up to which blobs may be committed: the orphan sweep deletes older uncommitted ones. */
  blobFreshMs: number
  retries: StoreRetries
  /** Called after the commit of a group; `ended`: the batches that it ended. */
  onCommitted: (ended: readonly BatchRow[]) => void
}

export class CommitQueue {
  readonly #options: CommitQueueOptions
  #queue: Pending[] = []
  #running: Promise<void> | null = null

  constructor(options: CommitQueueOptions) {
    this.#options = options
  }

  /** Resolves when the queue is empty; null if it is. */
  get running(): Promise<void> | null {
    return this.#running
  }

  /** Queues a commit. `settled` is called before `onCommitted` and before the promise resolves; it rejects if `settled` throws. */
  commit(
    commit: ChunkCommit,
    rewrite: Pending['rewrite'],
    settled: (end: CommitEnd) => void,
  ): Promise<CommitEnd> {
    return new Promise((resolve, failed) => {
      const done = (end: CommitEnd): void => {
        try {
          settled(end)
          resolve(end)
        } catch (error) {
          failed(error)
        }
      }
      const writtenAt = this.#options.clock.steady()
      this.#queue.push({ commit, records: [commit.record], writtenAt, rewrite, done, failed })
      // An asynchronous start lets all parts of a journal be queued before.
      this.#running ??= Promise.resolve().then(() => this.#commitAll())
    })
  }

  async #commitAll(): Promise<void> {
    while (this.#queue.length > 0) {
      const group = this.#queue
      this.#queue = []
      try {
        await this.#commitGroup(group)
      } catch (error) {
        this.#options.log.error({ err: error }, 'the end of a commit could not be handled')
        for (const { failed } of group) failed(error)
      }
    }
    // A later reset would miss commits that are queued meanwhile.
    this.#running = null
  }

  async #commitGroup(all: readonly Pending[]): Promise<void> {
    const { store, clock, rules, retries, onCommitted } = this.#options
    let group = all
    const alone = all.length === 1
    let rejections = 0
    const isFinal = (error: unknown): boolean =>
      error instanceof StatementRejected && (!alone || ++rejections >= REJECTIONS_MAX)
    let committed: Committed
    try {
      // Attempts with an unknown outcome may be repeated: only one of them can take effect.
      committed = await retries.untilStored(
        'commit',
        async () => {
          group = await this.#freshen(group)
          const commits = group.map((pending) => pending.commit)
          return await store.write((tx) => commitChunks(tx, commits, rules, clock.now()))
        },
        isFinal,
      )
    } catch (error) {
      if (!(error instanceof StatementRejected)) throw error
      if (alone) for (const { done } of group) done({ how: 'rejected', error })
      else for (const pending of group) await this.#commitGroup([ownBlobs(pending)])
      return
    }
    const { lost, repeated, ended } = committed
    for (const pending of group) {
      const { commit, done } = pending
      if (lost.includes(commit)) done({ how: 'lost' })
      else {
        const record = repeated.includes(commit) ? await this.#effective(pending) : commit.record
        done({ how: 'accepted', record })
      }
    }
    onCommitted(ended)
  }

  /** The record of the attempt that took effect. */
  async #effective({ commit, records }: Pending): Promise<CommitRecord> {
    const { store, retries } = this.#options
    const last = commit.record
    if (records.length === 1 || !('journal' in last)) return last
    const { batch_id, idx } = commit.claim
    const parts = await retries.untilStored('commit', () => listJournalParts(store.read, batch_id, idx))
    const keys = new Set(parts.map((part) => part.journal_blob))
    return records.find((record) => 'journal' in record && keys.has(record.journal.key)) ?? last
  }

  /**
   * Writes the blobs of a commit again before the orphan sweep would delete them, if commits fail for long. That takes
   * time: commits whose blobs have become too old meanwhile are queued again, each for a write of its own.
   */
  async #freshen(group: readonly Pending[]): Promise<Pending[]> {
    const { clock, blobFreshMs } = this.#options
    const isOld = ({ writtenAt }: Pending): boolean => clock.steady() - writtenAt >= blobFreshMs
    const old = group.find(isOld)
    if (!old) return [...group]
    const writtenAt = clock.steady()
    const record = await old.rewrite()
    const { late = [], ready = [] } = Object.groupBy(
      group.filter((pending) => pending !== old),
      (pending) => (isOld(pending) ? 'late' : 'ready'),
    )
    this.#queue.push(...late)
    if (record === null) {
      old.done({ how: 'unwritable' })
      return ready
    }
    old.commit = { ...old.commit, record }
    old.records.push(record)
    old.writtenAt = writtenAt
    return [old, ...ready]
  }
}

/** A commit that is tried alone needs a journal of its own, which commits of a group share. */
function ownBlobs(pending: Pending): Pending {
  if ('journal' in pending.commit.record) pending.writtenAt = Number.NEGATIVE_INFINITY
  return pending
}

// Retries writes to the stores until they succeed: finished lines are paid for, and a full disk may get space again.
// While they fail, the worker claims no work.

/** The recorder's work on blobs (`journal`, `seal`) and in the database (`commit`, `park`). */
export const RECORD_WORK = ['journal', 'seal', 'commit', 'park'] as const
type RecordWork = (typeof RECORD_WORK)[number]

/** Receives the recorder's measurements for metrics. */
export interface RecordObserver {
  /** Called with lines whose end is durable. */
  committed(lines: Fresh): void
  recorded(work: RecordWork, durationMs: number): void
}

const RETRY_MS_MIN = 200
const RETRY_MS_MAX = 5_000

/** The names of work in log messages. */
const WORK: Readonly<Record<RecordWork, string>> = {
  journal: 'writing a journal',
  seal: 'sealing a chunk',
  commit: 'committing results',
  park: 'parking a chunk',
}

/** The store that work is for. */
const STORES: Readonly<Record<RecordWork, 'blobs' | 'database'>> = {
  journal: 'blobs',
  seal: 'blobs',
  commit: 'database',
  park: 'database',
}

interface StoreRetriesOptions extends Pick<Ports, 'clock' | 'log'> {
  observe?: RecordObserver | undefined
}

export class StoreRetries {
  readonly #options: StoreRetriesOptions
  /** The time since which a store fails (Unix ms). */
  readonly #failing = new Map<'blobs' | 'database', number>()

  constructor(options: StoreRetriesOptions) {
    this.#options = options
  }

  /** The time since which one of the stores fails (Unix ms); null if both work. */
  get failingSince(): number | null {
    return this.#failing.size === 0 ? null : Math.min(...this.#failing.values())
  }

  /** Repeats `attempt` until it succeeds; throws only errors that `isFinal` accepts. */
  async untilStored<T>(
    work: RecordWork,
    attempt: () => Promise<T>,
    isFinal: (error: unknown) => boolean = () => false,
  ): Promise<T> {
    const { clock, log, observe } = this.#options
    for (let waitMs = RETRY_MS_MIN; ; waitMs = Math.min(waitMs * 2, RETRY_MS_MAX)) {
      try {
        const begun = clock.now()
        const value = await attempt()
        observe?.recorded(work, clock.now() - begun)
        this.#failing.delete(STORES[work])
        return value
      } catch (error) {
        if (isFinal(error)) throw error
        // A database that rejects a statement works.
        if (!(error instanceof StatementRejected) && !this.#failing.has(STORES[work]))
          this.#failing.set(STORES[work], clock.now())
        log.error({ err: error }, `${WORK[work]} failed; trying again in ${waitMs} ms`)
        await sleep(clock, waitMs)
      }
    }
  }
}
