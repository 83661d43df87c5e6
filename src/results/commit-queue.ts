// Commits what is ready, in groups: what has come in while one transaction runs goes into the next one together. An
// attempt that fails is made again for as long as it takes, for its lines are paid for; only what can never succeed is
// not. Where the database refuses a group for what it holds, each commit is tried alone, so that one that cannot be
// made holds up no other.
import type { Clock } from '../domain/clock.ts'
import { listJournalParts } from '../store/journal-parts.ts'
import type { BatchRow } from '../store/schema.ts'
import { StatementRejected, type Store } from '../store/store.ts'
import { type ChunkCommit, type Committed, commitChunks } from './commit.ts'
import type { FinishRules } from './finish.ts'
import type { RetryUntilStored } from './store-retries.ts'

/** So often is a commit tried that is refused by itself: others may have been in its way. */
const REFUSALS_MAX = 3

export type CommitRecord = ChunkCommit['record']

/**
 * `accepted`: with what it points to in the end. `lost`: the lease is another worker's. `unwritable`: it had to be
 * written again, and a journal that it needs is damaged. `refused`: it can never be committed.
 */
export type CommitEnd =
  | { how: 'accepted'; record: CommitRecord }
  | { how: 'lost' | 'unwritable' }
  | { how: 'refused'; error: StatementRejected }

interface Pending {
  commit: ChunkCommit
  /** What its attempts have pointed to, the last one at the end. */
  records: CommitRecord[]
  /** When its blobs were written (Unix ms); longer ago than anything where nobody can tell any more. */
  writtenAt: number
  /** The last attempt to commit it: by a clock that has been set back since, nobody can tell how old it is. */
  triedAt: number
  /** Writes them once more, under other names; null when that cannot be done. */
  rewrite: () => Promise<CommitRecord | null>
  done: (end: CommitEnd) => void
}

export interface CommitQueueOptions {
  store: Store
  clock: Clock
  rules: FinishRules
  /** How old blobs may be when they are committed: the sweep takes older ones that nobody has committed. */
  blobFreshMs: number
  retryUntilStored: RetryUntilStored
  /** A group has been committed; batches that it ended. */
  onCommitted: (ended: readonly BatchRow[]) => void
}

export class CommitQueue {
  readonly #options: CommitQueueOptions
  #queue: Pending[] = []
  #running: Promise<void> | null = null

  constructor(options: CommitQueueOptions) {
    this.#options = options
  }

  /** Resolves when nothing is under way. */
  get running(): Promise<void> | null {
    return this.#running
  }

  /** `settled` is called at once when it has ended, before anybody hears that its group has been committed. */
  commit(
    commit: ChunkCommit,
    rewrite: Pending['rewrite'],
    settled: (end: CommitEnd) => void,
  ): Promise<CommitEnd> {
    return new Promise((resolve) => {
      const done = (end: CommitEnd): void => {
        settled(end)
        resolve(end)
      }
      const now = this.#options.clock.now()
      this.#queue.push({
        commit,
        records: [commit.record],
        writtenAt: now,
        triedAt: now,
        rewrite,
        done,
      })
      // Begun once the caller has handed in all that belongs together: a journal's parts are one commit.
      this.#running ??= Promise.resolve()
        .then(() => this.#commitAll())
        .finally(() => {
          this.#running = null
        })
    })
  }

  async #commitAll(): Promise<void> {
    while (this.#queue.length > 0) {
      const group = this.#queue
      this.#queue = []
      await this.#commitGroup(group)
    }
  }

  async #commitGroup(all: readonly Pending[]): Promise<void> {
    const { store, clock, rules, retryUntilStored, onCommitted } = this.#options
    let group = all
    const alone = all.length === 1
    let refusals = 0
    const isFinal = (error: unknown): boolean =>
      error instanceof StatementRejected && (!alone || ++refusals >= REFUSALS_MAX)
    let committed: Committed
    try {
      // An attempt whose answer was lost, or is late, is no reason to wait: only one of them can take effect.
      committed = await retryUntilStored(
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
      if (alone) for (const { done } of group) done({ how: 'refused', error })
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

  /** Which of its attempts has taken effect: where the lines lie from now on. */
  async #effective({ commit, records }: Pending): Promise<CommitRecord> {
    const { store, retryUntilStored } = this.#options
    const last = commit.record
    if (records.length === 1 || !('journal' in last)) return last
    const { batch_id, idx } = commit.claim
    const parts = await retryUntilStored('commit', () => listJournalParts(store.read, batch_id, idx))
    const keys = new Set(parts.map((part) => part.journal_blob))
    return records.find((record) => 'journal' in record && keys.has(record.journal.key)) ?? last
  }

  /** Where commits are refused for long, the sweep takes what they would point to: it is written again in time. */
  async #freshen(group: readonly Pending[]): Promise<Pending[]> {
    const { clock, blobFreshMs } = this.#options
    const now = clock.now()
    for (const pending of group) {
      if (now < pending.triedAt) pending.writtenAt = Number.NEGATIVE_INFINITY
      pending.triedAt = now
    }
    const ready: Pending[] = []
    for (const pending of group) {
      if (now - pending.writtenAt >= blobFreshMs) {
        const writtenAt = clock.now()
        const record = await pending.rewrite()
        if (record === null) {
          pending.done({ how: 'unwritable' })
          continue
        }
        pending.commit = { ...pending.commit, record }
        pending.records.push(record)
        pending.writtenAt = writtenAt
      }
      ready.push(pending)
    }
    return ready
  }
}

/** Commits of one group may share a journal: one that is to be made alone needs its own. */
function ownBlobs(pending: Pending): Pending {
  if ('journal' in pending.commit.record) pending.writtenAt = Number.NEGATIVE_INFINITY
  return pending
}
