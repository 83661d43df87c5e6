// Makes finished lines durable. A chunk is sealed when its last line is finished. Chunks that stay open are journalled
// together, once the oldest finished line has waited for the flush interval. Blobs are written concurrently; their
// content counts only with the fenced commit that follows. Commits are grouped: all that are ready share a transaction.

import type { ResponseMemory } from '../backends/response-memory.ts'
import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlob } from '../blobs/sealed.ts'
import { newId } from '../domain/ids.ts'
import type { FinishRules } from '../lifecycle/batch.ts'
import { type Fenced, parkChunk, rejectChunk } from '../store/chunks.ts'
import { readRow } from '../store/rows.ts'
import type { BatchRow, ChunkRow } from '../store/schema.ts'
import type { Ports, StatementRejected, Writer } from '../store/store.ts'
import type { ChunkResults, Fresh } from './chunk-results.ts'
import type { RunCommit } from './commit.ts'
import {
  type CommitEnd,
  CommitQueue,
  type CommitRecord,
  type RecordObserver,
  StoreRetries,
} from './commit-queue.ts'
import { JOURNAL_OWNER } from './journal.ts'
import { encodeLineIndex } from './line-index.ts'
import { type SealedChunk, sealChunk } from './seal.ts'

/**
 * The share of the flush interval that a chunk's oldest finished line must have waited for the chunk to join another's
 * journal. Younger chunks wait: they may be sealed before, and then need no journal.
 */
const JOURNAL_SHARE_MIN = 0.5

const RESULTS_REJECTED =
  'the database rejects a value in the results of a chunk; its unfinished lines end as errors'

/** A leased chunk whose results are recorded. */
interface RecordedRun {
  readonly results: ChunkResults
}

/** The end of a run: `sealed` (all is committed), `parked` (its lease has ended) or `lost` (to another worker). */
export type RunEnd = 'sealed' | 'parked' | 'lost'

/** Events of results that are being recorded. */
export type Recorded<R> =
  /** Lines that were committed. */
  | { kind: 'settled'; run: R; fresh: Fresh }
  /** A transaction was committed, so limits may have room. `ended`: the batches that it ended. */
  | { kind: 'committed'; ended: readonly BatchRow[] }
  /** The database rejects results of the chunk: no further line of it may be sent. */
  | { kind: 'rejected'; run: R }
  /** The end of recording of a chunk. */
  | { kind: 'closed'; run: R; how: RunEnd }

interface RecorderOptions<R extends RecordedRun> extends Ports {
  rules: FinishRules
  flushIntervalMs: number
  /** Counts the bytes of results in memory. */
  answers: ResponseMemory
  /** The age in ms up to which blobs may be committed: the orphan sweep deletes older uncommitted ones. */
  blobFreshMs: number
  turn: { push(recorded: Recorded<R>): void }
  observe?: RecordObserver | undefined
}

export class Recorder<R extends RecordedRun> {
  readonly #options: RecorderOptions<R>
  readonly #open = new Set<R>()
  /** Bytes of results in memory, of open chunks and of chunks that are being sealed. */
  readonly #kept = new Map<R, number>()
  #keptBytes = 0
  #cancelTimer: (() => void) | null = null
  readonly #writing = new Set<Promise<void>>()
  readonly #sealing = new Map<R, Promise<void>>()
  readonly #retries: StoreRetries
  readonly #commits: CommitQueue

  constructor(options: RecorderOptions<R>) {
    this.#options = options
    this.#retries = new StoreRetries(options)
    this.#commits = new CommitQueue({
      ...options,
      retries: this.#retries,
      onCommitted: (ended) => options.turn.push({ kind: 'committed', ended }),
    })
  }

  /** The time since which the stores fail (Unix ms), while the worker claims no work; null if they work. */
  get failingSince(): number | null {
    return this.#retries.failingSince
  }

  /** Adds an open chunk. */
  track(run: R): void {
    this.#open.add(run)
    this.recorded([run])
  }

  /** Removes a chunk whose lease is lost. */
  untrack(run: R): void {
    this.#open.delete(run)
    this.#keep(run, 0)
  }

  /** Handles newly finished lines of these chunks. */
  recorded(runs: Iterable<R>): void {
    for (const run of runs) {
      if (!this.#open.has(run)) continue
      this.#keep(run, run.results.keptBytes)
      if (run.results.unfinished === 0) this.#seal(run)
    }
    let freshBytes = 0
    for (const { results } of this.#open) freshBytes += results.fresh.bytes
    if (freshBytes > this.#options.answers.unwrittenBytesMax) this.#startJournal(0)
    else this.#arm()
  }

  /**
   * Ends the lease of an open chunk after its finished lines are journalled. No line of it may be in flight, and none
   * may be sent from now on, because its reservations are released with its lease. `write` ends the lease, and is
   * repeated until it succeeds.
   */
  park(run: R, write: (tx: Writer, lease: ChunkRow) => Promise<Fenced>): Promise<void> {
    const parked = this.#park(run, write).catch((error: unknown) => this.#giveUp([run], error))
    this.#background(parked)
    return parked
  }

  async #park(run: R, write: (tx: Writer, lease: ChunkRow) => Promise<Fenced>): Promise<void> {
    const { results } = run
    // A chunk whose last line has ended meanwhile is sealed instead, and the seal counts its fresh lines.
    while (this.#open.has(run) && (results.journalling || results.hasFresh))
      await (results.journalling ?? this.#journal([run]))
    if (!this.#open.delete(run)) return
    await this.#endLease(run, (tx) => write(tx, results.lease))
  }

  async #endLease(run: R, write: (tx: Writer) => Promise<Fenced>): Promise<void> {
    const ended = await this.#retries.untilStored('park', () => this.#options.store.write(write))
    this.#close(run, ended === 'lost' ? 'lost' : 'parked')
  }

  /** Resolves when every recorded line is committed, or its lease is lost, and no chunk is being parked. */
  async flush(): Promise<void> {
    for (;;) {
      // Lines that ended in this turn are handled at its end, which may come later.
      this.recorded([...this.#open])
      // Lines that finished while a journal was being written go into the next one.
      this.#startJournal(0)
      const journals = [...this.#open].flatMap(({ results }) => results.journalling ?? [])
      if (this.#writing.size === 0 && journals.length === 0 && !this.#commits.running) return
      await Promise.all([...this.#writing, ...journals, this.#commits.running])
    }
  }

  /** Resolves when the finished lines of these chunks are committed, or their leases are lost. */
  async settle(runs: readonly R[]): Promise<void> {
    await Promise.all(runs.map(({ results }) => results.journalling))
    const fresh = runs.filter(
      (run) => this.#open.has(run) && run.results.hasFresh && !run.results.journalling,
    )
    const rest = runs.flatMap((run) => [run.results.journalling, this.#sealing.get(run)])
    await Promise.all([fresh.length > 0 ? this.#journal(fresh) : null, ...rest])
  }

  #keep(run: R, bytes: number): void {
    this.#keptBytes += bytes - (this.#kept.get(run) ?? 0)
    if (bytes === 0) this.#kept.delete(run)
    else this.#kept.set(run, bytes)
    this.#options.answers.result_bytes = this.#keptBytes
  }

  /** Sets the timer for the next journal. */
  #arm(): void {
    if (this.#cancelTimer) return
    const { clock, flushIntervalMs } = this.#options
    let waitedMs = Number.NEGATIVE_INFINITY
    for (const { results } of this.#open)
      if (!results.journalling) waitedMs = Math.max(waitedMs, this.#waitedMs(results))
    if (waitedMs === Number.NEGATIVE_INFINITY) return
    this.#cancelTimer = clock.after(Math.max(0, flushIntervalMs - waitedMs), () => {
      this.#startJournal(flushIntervalMs * JOURNAL_SHARE_MIN)
    })
  }

  /** Journals the open chunks whose oldest finished line has waited for `waitedMs`. */
  #startJournal(waitedMs: number): void {
    this.#cancelTimer?.()
    this.#cancelTimer = null
    const runs = [...this.#open].filter(
      ({ results }) =>
        results.hasFresh &&
        results.unfinished > 0 &&
        !results.journalling &&
        this.#waitedMs(results) >= waitedMs,
    )
    if (runs.length > 0) this.#background(this.#journal(runs))
    this.#arm()
  }

  /** The wait of a chunk's oldest finished line in ms; infinite if the clock was set back meanwhile. */
  #waitedMs({ freshSince }: ChunkResults): number {
    if (freshSince === null) return Number.NEGATIVE_INFINITY
    const waitedMs = this.#options.clock.now() - freshSince
    return waitedMs < 0 ? Number.POSITIVE_INFINITY : waitedMs
  }

  async #journal(runs: readonly R[]): Promise<void> {
    const parts = runs.map((run) => {
      run.results.isJournalled = true
      return { run, fresh: run.results.takeFresh() }
    })
    const written = this.#writeJournal(parts).catch((error: unknown) => this.#giveUp(runs, error))
    for (const run of runs) {
      run.results.journalling = written.finally(() => {
        run.results.journalling = null
        // Lines that finished meanwhile need the next journal, or the seal that waited for this one.
        if (!this.#open.has(run)) return
        if (run.results.unfinished === 0) this.#seal(run)
        else this.#arm()
      })
    }
    await written
  }

  async #writeJournal(parts: readonly { run: R; fresh: Fresh }[]): Promise<void> {
    const { sealed, clock } = this.#options
    const put = (of: typeof parts): Promise<SealedBlob> =>
      sealed.put(JOURNAL_OWNER, `journals/${newId('request', clock.now()).slice('req_'.length)}`, [
        ...of.flatMap(({ run, fresh }) => run.results.entriesOf(fresh.positions)),
        encodeLineIndex(of.flatMap(({ run, fresh }) => run.results.sizes(fresh.positions))),
      ])
    const journal = await this.#retries.untilStored('journal', () => put(parts))
    let at = 0
    const commits = parts.map(async (part) => {
      const { run, fresh } = part
      const byte_start = at
      at += fresh.bytes
      const record = { journal, byte_start, byte_end: at }
      const commit = { ...commitOf(run), fresh, record }
      const committed = await this.#commit(run, commit, async () => ({
        journal: await put([part]),
        byte_start: 0,
        byte_end: fresh.bytes,
      }))
      const isTooMuch = this.#keptBytes > this.#options.answers.keptBytesMax
      if (!committed || !('journal' in committed) || !isTooMuch) return
      run.results.moveToJournal(fresh.positions, committed.journal, committed.byte_start)
      if (this.#kept.has(run)) this.#keep(run, run.results.keptBytes)
    })
    await Promise.all(commits)
  }

  #close(run: R, how: RunEnd): void {
    this.#keep(run, 0)
    run.results.trace?.end(this.#options.clock.now(), { 'offpeak.chunk.end': how })
    this.#options.turn.push({ kind: 'closed', run, how })
  }

  #seal(run: R): void {
    if (run.results.journalling) return
    this.#open.delete(run)
    run.results.trace?.enter('seal', this.#options.clock.now())
    const sealing = this.#writeSeal(run)
      .catch((error: unknown) => this.#giveUp([run], error))
      .finally(() => this.#sealing.delete(run))
    this.#sealing.set(run, sealing)
    this.#background(sealing)
  }

  async #writeSeal(run: R): Promise<void> {
    const { sealed, clock } = this.#options
    const { results } = run
    const { project_id, batch_id, idx, epoch } = results.lease
    const write = (): Promise<SealedChunk> =>
      sealChunk(sealed, { project_id, batch_id, idx }, `${epoch}-${clock.now().toString(36)}`, results)
    const result = await this.#retries.untilStored('seal', () => this.#unlessDamaged(run, write))
    if (result === 'damaged') return await this.#parkDamaged(run)
    if (result === 'lost') return this.#close(run, 'lost')
    results.trace?.enter('commit', clock.now())
    const fresh = results.takeFresh()
    const journalled = results.isJournalled
    const record = { sealed: result, journalled }
    await this.#commit(run, { ...commitOf(run), fresh, record }, async () => {
      const again = await this.#unlessDamaged(run, write)
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
  async #unlessDamaged<T>(run: R, write: () => Promise<T>): Promise<T | 'lost' | 'damaged'> {
    for (let readings = 1; ; readings++) {
      try {
        return await write()
      } catch (error) {
        if (!isDamaged(error)) throw error
        if (!(await this.#isLeased(run))) return 'lost'
        // A second read follows, since one failure is no proof of damage.
        if (readings === 2) return 'damaged'
      }
    }
  }

  async #isLeased({ results }: R): Promise<boolean> {
    const { batch_id, idx, epoch } = results.lease
    const now = await readRow(this.#options.store.read, 'chunks', { batch_id, idx })
    return now?.state === 'leased' && now.epoch === epoch
  }

  /** Parks a chunk with a damaged journal. The worker that claims it next reverses the charges of the lost lines. */
  async #parkDamaged(run: R): Promise<void> {
    if (run.results.hasFresh) await this.#journal([run])
    await this.#endLease(run, (tx) => parkChunk(tx, run.results.lease, 0, 'stores_failing'))
  }

  /** Commits a chunk; resolves to the locations of its committed lines, or null if it cannot be recorded any more. */
  async #commit(
    run: R,
    commit: RunCommit,
    rewrite: () => Promise<CommitRecord | null>,
  ): Promise<CommitRecord | null> {
    const end = await this.#commits.commit(commit, rewrite, (how) => this.#settle(run, commit, how))
    if (end.how === 'accepted') return end.record
    if (end.how === 'rejected') await this.#reject(run, end.error)
    if (end.how === 'unwritable') {
      run.results.putBack(commit.fresh)
      await this.#parkDamaged(run)
    }
    return null
  }

  #settle(run: R, { fresh }: RunCommit, end: CommitEnd): void {
    const { turn, observe } = this.#options
    if (end.how === 'accepted') {
      run.results.commitSeq++
      observe?.committed(fresh)
      turn.push({ kind: 'settled', run, fresh })
      if ('sealed' in end.record) this.#close(run, 'sealed')
      return
    }
    this.#open.delete(run)
    if (end.how === 'lost') this.#close(run, 'lost')
  }

  /** Requeues a chunk whose results the database rejects. The worker that claims it next ends its lines as errors. */
  async #reject(run: R, error: StatementRejected): Promise<void> {
    const { log, turn } = this.#options
    const { batch_id, idx } = run.results.lease
    log.error({ err: error, batch: batch_id, chunk: idx }, RESULTS_REJECTED)
    turn.push({ kind: 'rejected', run })
    await this.#endLease(run, (tx) => rejectChunk(tx, run.results.lease, error.message))
  }

  /** Gives up chunks after an unexpected error: another attempt would fail too, and they are claimed again. */
  #giveUp(runs: readonly R[], error: unknown): void {
    this.#options.log.error({ err: error }, 'results could not be recorded; their chunks are claimed again')
    for (const run of runs) {
      this.#open.delete(run)
      this.#close(run, 'lost')
    }
  }

  #background(work: Promise<void>): void {
    const tracked = work.finally(() => this.#writing.delete(tracked))
    this.#writing.add(tracked)
  }
}

function commitOf({ results }: RecordedRun): Pick<RunCommit, 'claim' | 'begunAt' | 'hasReservations'> {
  return { claim: results.lease, begunAt: results.begunAt, hasReservations: results.hasReservations }
}
