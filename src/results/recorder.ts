// Makes finished lines durable. A chunk is sealed when its last line is finished. Chunks that stay open are journalled
// together, once the oldest finished line has waited for the flush interval. Blobs are written concurrently; their
// content counts only with the fenced commit that follows. Commits are grouped: all that are ready share a transaction.

import type { ResponseMemory } from '../backends/response-memory.ts'
import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import type { Clock } from '../domain/clock.ts'
import { newId } from '../domain/ids.ts'
import type { Log } from '../domain/log.ts'
import { parkChunk, readChunk, rejectChunk } from '../store/chunks.ts'
import { pausedUntil } from '../store/pauses.ts'
import { wakeIfEnded } from '../store/remote-batches.ts'
import type { BatchRow } from '../store/schema.ts'
import type { StatementRejected, Store } from '../store/store.ts'
import type { ChunkCommit } from './commit.ts'
import { type CommitEnd, CommitQueue, type CommitRecord } from './commit-queue.ts'
import type { FinishRules } from './finish.ts'
import { encodeEntries, JOURNAL_OWNER, journalIndex, placed } from './journal.ts'
import { KeptBytes } from './kept-bytes.ts'
import type { OpenChunk } from './open-chunk.ts'
import type { Outcome } from './outcome.ts'
import type { RecordObserver } from './record-observer.ts'
import { type SealedChunk, sealChunk } from './seal.ts'
import { type RetryUntilStored, StoreRetries } from './store-retries.ts'

/**
 * A chunk joins a journal that is written for others if its oldest finished line has waited for this share of the flush
 * interval. Younger chunks wait: they may be sealed before, and then need no journal.
 */
const JOURNAL_SHARE_MIN = 0.5

const RESULTS_REJECTED =
  'the database rejects a value in the results of a chunk; its unfinished lines end as errors'

export interface RecorderOptions {
  store: Store
  sealed: SealedBlobs
  clock: Clock
  log: Log
  rules: FinishRules
  flushIntervalMs: number
  /** Counts the bytes of results in memory. */
  answers: ResponseMemory
  /** How old blobs may be when they are committed: the orphan sweep deletes older uncommitted ones. */
  blobFreshMs: number
  /** The chunk was sealed or parked, or its lease is lost. */
  onClosed: (chunk: OpenChunk, how: 'sealed' | 'parked' | 'lost') => void
  /** These lines of a chunk are committed. */
  onSettled: (chunk: OpenChunk, outcomes: readonly Outcome[]) => void
  /** Lines were settled, so limits may have room. */
  onCommitted: () => void
  /** The database rejects results of the chunk: no further line of it may be sent. */
  onRejected: (chunk: OpenChunk) => void
  onEnded: (batch: BatchRow) => void
  observe?: RecordObserver | undefined
}

export class Recorder {
  readonly #options: RecorderOptions
  readonly #open = new Set<OpenChunk>()
  readonly #kept: KeptBytes
  /** When the oldest finished line that is in no journal was finished. */
  readonly #freshSince = new WeakMap<OpenChunk, number>()
  /** Chunks of which this process has written to a journal. */
  readonly #journalled = new WeakSet<OpenChunk>()
  #cancelTimer: (() => void) | null = null
  readonly #writing = new Set<Promise<void>>()
  readonly #sealing = new Map<OpenChunk, Promise<void>>()
  readonly #retries: StoreRetries
  readonly #retryUntilStored: RetryUntilStored
  readonly #commits: CommitQueue

  constructor(options: RecorderOptions) {
    this.#options = options
    this.#kept = new KeptBytes(options.answers)
    this.#retries = new StoreRetries(options)
    this.#retryUntilStored = this.#retries.retryUntilStored
    this.#commits = new CommitQueue({
      ...options,
      retryUntilStored: this.#retryUntilStored,
      onCommitted: (ended) => {
        for (const batch of ended) options.onEnded(batch)
        options.onCommitted()
      },
    })
  }

  /** Set while the stores fail (Unix ms): the worker then claims no work. */
  get failingSince(): number | null {
    return this.#retries.failingSince
  }

  track(chunk: OpenChunk): void {
    this.#open.add(chunk)
    if (chunk.unfinished === 0) this.#seal(chunk)
  }

  untrack(chunk: OpenChunk): void {
    this.#open.delete(chunk)
    this.#kept.drop(chunk)
  }

  /** A line of a tracked chunk has ended. */
  record(chunk: OpenChunk, outcome: Outcome): void {
    chunk.finish(outcome)
    if (!this.#open.has(chunk)) return
    this.#kept.count(chunk)
    if (chunk.unfinished === 0) this.#seal(chunk)
    else {
      if (!this.#freshSince.has(chunk)) this.#freshSince.set(chunk, this.#options.clock.now())
      if (this.#freshBytes() > this.#options.answers.unwrittenBytesMax) this.#startJournal(0)
      else this.#arm()
    }
  }

  /**
   * Parks an open chunk until `runAt` (Unix ms), after its finished lines are journalled. No line of it may be in
   * flight, and none may be sent from now on, because its reservations are released with its lease. A chunk that is
   * stopped meanwhile is not parked. `model` is the model that its unfinished lines wait for, if there is one.
   */
  async park(chunk: OpenChunk, runAt: number, reason: string, model?: string | null): Promise<void> {
    if (chunk.parking) return
    chunk.parking = true
    while (chunk.journalling || chunk.hasFresh) await (chunk.journalling ?? this.#journal([chunk]))
    if (!this.#open.has(chunk) || (chunk.stopped !== null && chunk.remote.size === 0)) return
    this.#open.delete(chunk)
    const { store } = this.#options
    const parked = await this.#retryUntilStored('park', () =>
      store.write(async (tx) => {
        const until =
          reason === 'paused' ? await pausedUntil(tx, chunk.claim, unfinishedModels(chunk), runAt) : runAt
        const parked = await parkChunk(tx, chunk.lease, until, reason, model, chunk.lineTries())
        if (chunk.remote.size > 0) await wakeIfEnded(tx, chunk.claim)
        return parked
      }),
    )
    this.#close(chunk, parked === 'lost' ? 'lost' : 'parked')
  }

  /** Resolves when every recorded line is committed, or its lease is lost. */
  async flush(): Promise<void> {
    for (;;) {
      // Lines that finished while a journal was being written go into the next one.
      this.#startJournal(0)
      const journals = [...this.#open].map((chunk) => chunk.journalling).filter((journal) => journal !== null)
      if (this.#writing.size === 0 && journals.length === 0 && !this.#commits.running) return
      await Promise.all([...this.#writing, ...journals, this.#commits.running])
    }
  }

  /** Resolves when the finished lines of these chunks are committed, or their leases are lost. */
  async settle(chunks: readonly OpenChunk[]): Promise<void> {
    await Promise.all(chunks.map((chunk) => chunk.journalling))
    const fresh = chunks.filter((chunk) => this.#open.has(chunk) && chunk.hasFresh && !chunk.journalling)
    const rest = chunks.flatMap((chunk) => [chunk.journalling, this.#sealing.get(chunk)])
    await Promise.all([fresh.length > 0 ? this.#journal(fresh) : null, ...rest])
  }

  #freshBytes(): number {
    let bytes = 0
    for (const chunk of this.#open) bytes += chunk.freshBytes
    return bytes
  }

  /** Sets the timer for the next journal. */
  #arm(): void {
    if (this.#cancelTimer) return
    const { clock, flushIntervalMs } = this.#options
    let waitedMs = Number.NEGATIVE_INFINITY
    for (const chunk of this.#open)
      if (!chunk.journalling) waitedMs = Math.max(waitedMs, this.#waitedMs(chunk))
    if (waitedMs === Number.NEGATIVE_INFINITY) return
    this.#cancelTimer = clock.after(Math.max(0, flushIntervalMs - waitedMs), () => {
      this.#startJournal(flushIntervalMs * JOURNAL_SHARE_MIN)
    })
  }

  /** Journals the open chunks whose oldest finished line has waited for `waitedMs`. */
  #startJournal(waitedMs: number): void {
    this.#cancelTimer?.()
    this.#cancelTimer = null
    const chunks = [...this.#open].filter(
      (chunk) =>
        chunk.hasFresh && chunk.unfinished > 0 && !chunk.journalling && this.#waitedMs(chunk) >= waitedMs,
    )
    if (chunks.length > 0) this.#background(this.#journal(chunks))
    this.#arm()
  }

  /** How long the oldest finished line of a chunk has waited; infinite if the clock was set back meanwhile. */
  #waitedMs(chunk: OpenChunk): number {
    const since = this.#freshSince.get(chunk)
    if (since === undefined) return Number.NEGATIVE_INFINITY
    const waitedMs = this.#options.clock.now() - since
    return waitedMs < 0 ? Number.POSITIVE_INFINITY : waitedMs
  }

  async #journal(chunks: readonly OpenChunk[]): Promise<void> {
    const parts = chunks.map((chunk) => {
      const fresh = chunk.takeFresh()
      this.#freshSince.delete(chunk)
      this.#journalled.add(chunk)
      return { chunk, fresh, ...encodeEntries(fresh) }
    })
    const written = this.#writeJournal(parts)
    for (const chunk of chunks) {
      chunk.journalling = written.finally(() => {
        chunk.journalling = null
        // Lines that finished meanwhile need the next journal, or the seal that waited for this one.
        if (!this.#open.has(chunk)) return
        if (chunk.unfinished === 0) this.#seal(chunk)
        else this.#arm()
      })
    }
    await written
  }

  async #writeJournal(
    parts: readonly { chunk: OpenChunk; fresh: Outcome[]; pieces: Buffer[]; bytes: number }[],
  ): Promise<void> {
    const { sealed, clock } = this.#options
    const put = (of: typeof parts): Promise<SealedBlob> =>
      sealed.put(JOURNAL_OWNER, `journals/${newId('request', clock.now()).slice('req_'.length)}`, [
        ...of.flatMap(({ pieces }) => pieces),
        journalIndex(of.flatMap(({ fresh }) => fresh)),
      ])
    const journal = await this.#retryUntilStored('journal', () => put(parts))
    let at = 0
    const commits = parts.map(async (part) => {
      const { chunk, fresh, bytes } = part
      const byte_start = at
      at += bytes
      const record = { journal, byte_start, byte_end: at }
      const commit = { ...commitOf(chunk), fresh, record }
      const committed = await this.#commit(chunk, commit, async () => ({
        journal: await put([part]),
        byte_start: 0,
        byte_end: bytes,
      }))
      if (!committed || !('journal' in committed) || !this.#kept.isTooMuch) return
      chunk.forget(placed(fresh, committed.journal, committed.byte_start))
      if (this.#kept.has(chunk)) this.#kept.count(chunk)
    })
    await Promise.all(commits)
  }

  #close(chunk: OpenChunk, how: 'sealed' | 'parked' | 'lost'): void {
    this.#kept.drop(chunk)
    chunk.trace?.end(this.#options.clock.now(), { 'offpeak.chunk.end': how })
    this.#options.onClosed(chunk, how)
  }

  #seal(chunk: OpenChunk): void {
    if (chunk.journalling) return
    this.#open.delete(chunk)
    chunk.trace?.enter('seal', this.#options.clock.now())
    const sealing = this.#writeSeal(chunk).finally(() => this.#sealing.delete(chunk))
    this.#sealing.set(chunk, sealing)
    this.#background(sealing)
  }

  async #writeSeal(chunk: OpenChunk): Promise<void> {
    const { sealed, clock } = this.#options
    const { project_id, batch_id, idx, epoch } = chunk.claim
    const finished = chunk.allFinished()
    const write = (): Promise<SealedChunk> =>
      sealChunk(sealed, { project_id, batch_id, idx }, `${epoch}-${clock.now().toString(36)}`, finished)
    const result = await this.#retryUntilStored('seal', () => this.#unlessDamaged(chunk, write))
    if (result === 'damaged') return await this.#parkDamaged(chunk)
    if (result === 'lost') return this.#close(chunk, 'lost')
    chunk.trace?.enter('commit', clock.now())
    const fresh = chunk.takeFresh()
    const journalled = this.#journalled.has(chunk) || chunk.claim.completed + chunk.claim.failed > 0
    const record = { sealed: result, journalled }
    await this.#commit(chunk, { ...commitOf(chunk), fresh, record }, async () => {
      const again = await this.#unlessDamaged(chunk, write)
      // The commit of a lost chunk is rejected anyway.
      if (again === 'lost') return record
      if (again === 'damaged') return null
      return { sealed: again, journalled }
    })
  }

  /**
   * Runs `write`, which reads journals. `lost`: another worker has claimed the chunk, and its journals may be deleted.
   * `damaged`: a journal of the chunk cannot be read.
   */
  async #unlessDamaged<T>(chunk: OpenChunk, write: () => Promise<T>): Promise<T | 'lost' | 'damaged'> {
    for (let readings = 1; ; readings++) {
      try {
        return await write()
      } catch (error) {
        if (!isDamaged(error)) throw error
        if (!(await this.#isLeased(chunk))) return 'lost'
        // Read twice, because one failed read is no proof of damage.
        if (readings === 2) return 'damaged'
      }
    }
  }

  async #isLeased({ claim }: OpenChunk): Promise<boolean> {
    const now = await readChunk(this.#options.store.read, claim.batch_id, claim.idx)
    return now?.state === 'leased' && now.epoch === claim.epoch
  }

  /** A journal of the chunk is damaged. The worker that claims it next reverses the charges of the lost lines. */
  async #parkDamaged(chunk: OpenChunk): Promise<void> {
    const { store, clock } = this.#options
    if (chunk.hasFresh) await this.#journal([chunk])
    const parked = await this.#retryUntilStored('park', () =>
      store.write((tx) => parkChunk(tx, chunk.lease, clock.now(), 'stores_failing')),
    )
    this.#close(chunk, parked === 'lost' ? 'lost' : 'parked')
  }

  /** Resolves with the places of the committed lines; null if the chunk cannot be recorded any more. */
  async #commit(
    chunk: OpenChunk,
    commit: ChunkCommit,
    rewrite: () => Promise<CommitRecord | null>,
  ): Promise<CommitRecord | null> {
    const end = await this.#commits.commit(commit, rewrite, (how) => this.#settle(chunk, commit, how))
    if (end.how === 'accepted') return end.record
    if (end.how === 'rejected') await this.#reject(chunk, end.error)
    if (end.how === 'unwritable') {
      chunk.putBack(commit.fresh)
      await this.#parkDamaged(chunk)
    }
    return null
  }

  #settle(chunk: OpenChunk, { fresh }: ChunkCommit, end: CommitEnd): void {
    const { onSettled, observe } = this.#options
    if (end.how === 'accepted') {
      chunk.commitSeq++
      observe?.committed(fresh)
      onSettled(chunk, fresh)
      if ('sealed' in end.record) this.#close(chunk, 'sealed')
      return
    }
    this.#open.delete(chunk)
    if (end.how === 'lost') this.#close(chunk, 'lost')
  }

  /** The database rejects results of the chunk. The worker that claims it next ends its lines as errors. */
  async #reject(chunk: OpenChunk, error: StatementRejected): Promise<void> {
    const { store, log, onRejected } = this.#options
    const { batch_id, idx } = chunk.claim
    log.error({ err: error, batch: batch_id, chunk: idx }, RESULTS_REJECTED)
    onRejected(chunk)
    const rejected = await this.#retryUntilStored('park', () =>
      store.write((tx) => rejectChunk(tx, chunk.lease, error.message)),
    )
    this.#close(chunk, rejected === 'lost' ? 'lost' : 'parked')
  }

  #background(work: Promise<void>): void {
    const tracked = work.finally(() => this.#writing.delete(tracked))
    this.#writing.add(tracked)
  }
}

function unfinishedModels(chunk: OpenChunk): string[] {
  const unfinished = chunk.lines.filter((_, position) => !chunk.isFinished(position))
  return [...new Set(unfinished.flatMap(({ model }) => model ?? []))]
}

function commitOf(chunk: OpenChunk): Pick<ChunkCommit, 'claim' | 'begunAt' | 'hasReservations'> {
  return { claim: chunk.lease, begunAt: chunk.begunAt, hasReservations: chunk.hasReservations }
}
