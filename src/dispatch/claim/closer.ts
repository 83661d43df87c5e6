// Ends the remaining lines of batches that are cancelled, expired or without their input. These lines are not sent, so
// closing needs no model server, no reservation and no slot, and it goes before all other work. Chunks are claimed
// under the same leases as others and committed by the same fenced transaction, several at a time. Chunks that a
// worker has open are stopped by that worker (worker.ts).
import type { SealedBlobs } from '../../blobs/sealed.ts'
import { type StopReason, stopReason } from '../../domain/batch.ts'
import type { Clock } from '../../domain/clock.ts'
import { wireError } from '../../domain/errors.ts'
import type { Log } from '../../domain/log.ts'
import { type ChunkCommit, type Committed, commitChunks } from '../../results/commit.ts'
import type { FinishRules } from '../../results/finish.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import { sealChunk } from '../../results/seal.ts'
import { type BatchInput, readBatchInput } from '../../store/batches.ts'
import { parkChunk, rejectChunk, releaseChunk } from '../../store/chunks.ts'
import { claimClosable, claimPlan, listClosable, listEnding } from '../../store/ending-batches.ts'
import { lockSession, releaseStrayChunks, releaseStrayTasks } from '../../store/leases.ts'
import type { BatchRow, ChunkRow, TaskRow } from '../../store/schema.ts'
import { StatementRejected, type Store } from '../../store/store.ts'
import { postponeTask } from '../../store/tasks.ts'
import type { Observer } from '../observer.ts'
import { freshJob } from '../send/lane.ts'
import { failed } from '../send/line-outcome.ts'
import type { ChunkReader } from './chunk-reader.ts'

/** Batches per look. */
const BATCHES_MAX = 100
/** Chunks that are claimed and committed in one transaction: at most so many, and so many bytes of input. */
const CHUNKS_PER_COMMIT_MAX = 16
const BYTES_PER_COMMIT_MAX = 8 * 1024 * 1024
/** How long a chunk or a plan waits after a failure of a store. */
const RETRY_MS = 1_000

export interface CloserOptions {
  store: Store
  sealed: SealedBlobs
  reader: ChunkReader
  clock: Clock
  log: Log
  rules: FinishRules
  /** The session under which chunks are leased. */
  sessionId: () => string
  /** The chunks that are open in this process, or about to be. */
  leased: () => readonly ChunkRow[]
  /** Makes the chunks of a batch that ends before it was planned. */
  plan: (task: TaskRow, signal: AbortSignal) => Promise<void>
  onEnded: (batch: BatchRow) => void
  /** A claim failed, and may take effect at any time from now on. */
  onPossibleStray?: () => void
  observe?: Observer | undefined
}

export class Closer {
  readonly #options: CloserOptions
  readonly #abort = new AbortController()
  #running: Promise<void> | null = null
  #lookAgain = false
  /**
   * Batches with possible stray leases: a claim failed and may have taken effect all the same, or a lease could not be
   * released.
   */
  readonly #uncertain = new Set<string>()

  constructor(options: CloserOptions) {
    this.#options = options
  }

  /** Looks for chunks to close; if it is looking already, once more after that. */
  look(): void {
    if (this.#abort.signal.aborted) return
    if (this.#running) {
      this.#lookAgain = true
      return
    }
    this.#running = this.#closeAll().finally(() => {
      this.#running = null
      if (!this.#lookAgain) return
      this.#lookAgain = false
      this.look()
    })
  }

  async close(): Promise<void> {
    this.#abort.abort()
    await this.#running
  }

  async #closeAll(): Promise<void> {
    const { store, clock, log } = this.#options
    try {
      for (;;) {
        await this.#releaseStrays()
        if (this.#abort.signal.aborted) return
        const ending = await listEnding(store.read, clock.now(), BATCHES_MAX)
        const ids = await listClosable(store.read, store.claimSql, ending)
        if (ids.length === 0) return
        for (const id of ids) this.#uncertain.add(id)
        await this.#plan(ids)
        const anyClaimed = await this.#closeSome(ids)
        this.#uncertain.clear()
        // Other workers claimed them first, or the session has expired.
        if (!anyClaimed) return
      }
    } catch (error) {
      this.#options.onPossibleStray?.()
      log.error({ err: error }, 'closing batches failed; it is tried again')
    }
  }

  async #plan(ids: readonly string[]): Promise<void> {
    const { store, clock, log, plan } = this.#options
    for (;;) {
      const task = await this.#underSession((tx, id) => claimPlan(tx, store.claimSql, id, ids))
      if (!task) return
      try {
        await plan(task, this.#abort.signal)
      } catch (error) {
        log.error({ err: error, task: task.kind, subject: task.subject }, 'a task failed; it is tried again')
        const text = error instanceof Error ? error.message : String(error)
        await store.write((tx) => postponeTask(tx, task, clock.now() + RETRY_MS, text))
      }
    }
  }

  /** Whether there was anything to claim. */
  async #closeSome(ids: readonly string[]): Promise<boolean> {
    const { store } = this.#options
    const claims = await this.#underSession((tx, id) =>
      claimClosable(tx, store.claimSql, id, ids, CHUNKS_PER_COMMIT_MAX),
    )
    if (!claims || claims.length === 0) return false
    const inputs = new Map<string, Promise<BatchInput | undefined>>()
    for (const { batch_id } of claims)
      if (!inputs.has(batch_id)) inputs.set(batch_id, readBatchInput(store.read, batch_id))
    for (const group of inGroups(claims)) {
      const sealed = await Promise.all(group.map((claim) => this.#seal(claim, inputs.get(claim.batch_id)!)))
      await this.#commit(sealed.filter((commit) => commit !== null))
    }
    return true
  }

  async #commit(commits: readonly ChunkCommit[]): Promise<void> {
    if (commits.length === 0) return
    const { store, clock, rules, onEnded, observe } = this.#options
    let committed: Committed
    try {
      committed = await store.write((tx) => commitChunks(tx, commits, rules, clock.now()))
    } catch (error) {
      if (!(error instanceof StatementRejected)) throw error
      return await this.#isolate(commits, error)
    }
    const { lost, ended } = committed
    for (const commit of commits) if (!lost.includes(commit)) observe?.committed(commit.fresh)
    for (const batch of ended) onEnded(batch)
  }

  /** The database rejects a value in one of these commits: that chunk is rejected, and the others are committed. */
  async #isolate(commits: readonly ChunkCommit[], error: StatementRejected): Promise<void> {
    const { store } = this.#options
    const [first, ...others] = commits
    if (first && others.length === 0) await store.write((tx) => rejectChunk(tx, first.claim, error.message))
    else for (const commit of commits) await this.#commit([commit])
  }

  /** Releases leases of this session that the worker does not know of. */
  async #releaseStrays(): Promise<void> {
    if (this.#uncertain.size === 0) return
    const { leased } = this.#options
    const ids = [...this.#uncertain]
    await this.#underSession(async (tx, worker_id) => {
      await releaseStrayChunks(tx, worker_id, leased(), ids)
      await releaseStrayTasks(tx, worker_id, [], ids)
    })
    this.#uncertain.clear()
  }

  /** Null when the chunk cannot be closed now, or its batch is not ending any more. */
  async #seal(claim: ChunkRow, reading: Promise<BatchInput | undefined>): Promise<ChunkCommit | null> {
    const { store, sealed, reader, clock, log } = this.#options
    let lease = claim
    try {
      const input = await reading
      if (!input) throw new Error(`batch ${claim.batch_id} is gone`)
      const reason = stopReason(input.batch, clock.now())
      if (reason === null) {
        await store.write((tx) => releaseChunk(tx, claim))
        return null
      }
      const chunk = await reader.read(claim, input)
      lease = chunk.lease
      const fresh = endAll(chunk, reason, clock.now())
      const attempt = `${chunk.claim.epoch}-${clock.now().toString(36)}`
      const journalled = chunk.claim.completed + chunk.claim.failed > 0
      const record = { sealed: await sealChunk(sealed, claim, attempt, chunk.allFinished()), journalled }
      return { claim: chunk.lease, begunAt: null, fresh, hasReservations: false, record }
    } catch (error) {
      log.error(
        { err: error, batch: claim.batch_id, chunk: claim.idx },
        'a chunk could not be closed; it is tried again later',
      )
      await store.write((tx) => parkChunk(tx, lease, clock.now() + RETRY_MS, 'stores_failing'))
      return null
    }
  }

  async #underSession<T>(
    claim: (tx: Parameters<Parameters<Store['write']>[0]>[0], worker_id: string) => Promise<T>,
  ): Promise<T | undefined> {
    const { store, sessionId } = this.#options
    const id = sessionId()
    return await store.write(async (tx) =>
      (await lockSession(tx, store.claimSql, id)) ? await claim(tx, id) : undefined,
    )
  }
}

function endAll(chunk: OpenChunk, reason: StopReason, now: number) {
  const error = wireError(reason)
  for (const [position, line] of chunk.lines.entries()) {
    if (chunk.isFinished(position)) continue
    // A line that could never run keeps its own error, even if the batch expired.
    const outcome = failed(freshJob(chunk, position), line.fault ?? error, now)
    chunk.finish({ ...outcome, expired: reason === 'batch_expired' })
  }
  return chunk.takeFresh()
}

function inGroups(claims: readonly ChunkRow[]): ChunkRow[][] {
  const groups: ChunkRow[][] = []
  let bytes = Number.POSITIVE_INFINITY
  for (const claim of claims) {
    const own = claim.byte_end - claim.byte_start
    if (bytes + own > BYTES_PER_COMMIT_MAX) {
      groups.push([])
      bytes = 0
    }
    groups.at(-1)!.push(claim)
    bytes += own
  }
  return groups
}
