// Ends the remaining lines of batches that are past their `expires_at`, cancelled, or without their input. These lines
// are not sent, so this needs no model server, no reservation and no slot, and it goes before all other work. Chunks
// are claimed under the same leases as others and committed by the same fenced transaction, several at a time. Each
// worker stops the runs that it has open itself (worker.ts).
import { FINISHED } from '../dispatch/line-state.ts'
import type { Run } from '../dispatch/run.ts'
import type { Observer } from '../dispatch/senders/upstream.ts'
import { type StopReason, stopReason } from '../domain/batch.ts'
import { wireError } from '../domain/errors.ts'
import type { Model } from '../domain/model.ts'
import { hasBlockingLimit } from '../ledger/counters.ts'
import type { FinishRules } from '../lifecycle/batch.ts'
import { noteExpired } from '../progress/waiting-reason.ts'
import { type Committed, commitChunks, type RunCommit } from '../results/commit.ts'
import { NO_ATTEMPTS } from '../results/line-record.ts'
import { recordFailure } from '../results/record-line.ts'
import { sealChunk } from '../results/seal.ts'
import type { BatchInput } from '../store/batches.ts'
import { claimClosable, claimPlan, listEnding } from '../store/chunk-claims.ts'
import { parkChunk, rejectChunk, releaseChunk } from '../store/chunks.ts'
import type { BatchRow, ChunkRow } from '../store/schema.ts'
import { type Ports, StatementRejected } from '../store/store.ts'
import type { TaskHandler } from '../store/tasks.ts'
import type { ChunkReader } from './claim/chunk-reader.ts'
import { type Leases, Rounds } from './claim/leases.ts'
import { runTask } from './task-runner.ts'

const BATCHES_MAX = 100
/** Chunks that are claimed and committed in one transaction: at most so many, and so many bytes of input. */
const CHUNKS_PER_COMMIT_MAX = 16
const BYTES_PER_COMMIT_MAX = 8 * 1024 * 1024
/** How long a chunk or a plan waits after a failure of a store. */
const RETRY_MS = 1_000

interface EndingBatchesOptions extends Ports {
  reader: ChunkReader
  rules: FinishRules
  leases: Leases
  models: ReadonlyMap<string, Model>
  /** If given, no other batch is closed. */
  onlyBatches?: ReadonlySet<string> | undefined
  /** Makes the chunks of a batch that ends before it was planned. */
  plan: TaskHandler
  onEnded: (batch: BatchRow) => void
  /** Gives a run what is known of how its lines were tried. */
  restoreTries: (run: Run) => void
  observe?: Observer | undefined
}

export class EndingBatches {
  readonly #options: EndingBatchesOptions
  readonly #abort = new AbortController()
  readonly #rounds = new Rounds(() => this.#closeAll())
  /** The messages of lines that expire, by batch. */
  #expired: ReadonlyMap<string, string> = new Map()

  constructor(options: EndingBatchesOptions) {
    this.#options = options
  }

  /** Closes what there is to close; while it does, once more after that. */
  endNow(): void {
    this.#rounds.start()
  }

  close(): Promise<void> {
    this.#abort.abort()
    return this.#rounds.close()
  }

  async #closeAll(): Promise<void> {
    const { store, clock, log, models, onlyBatches } = this.#options
    try {
      for (;;) {
        if (this.#abort.signal.aborted) return
        const ids = await listEnding(store.read, clock.now(), BATCHES_MAX, onlyBatches)
        if (ids.length === 0) return
        this.#expired = await noteExpired(store, ids, clock.now(), models)
        await this.#plan(ids)
        const anyClaimed = await this.#closeSome(ids)
        // Other workers claimed them first, or the session has expired.
        if (!anyClaimed) return
      }
    } catch (error) {
      this.#options.leases.suspect()
      log.error({ err: error }, 'closing batches failed; it is tried again')
    }
  }

  async #plan(ids: readonly string[]): Promise<void> {
    const { plan, leases } = this.#options
    while (!this.#abort.signal.aborted) {
      const [task] = await leases.claim(async (tx, id) => {
        const claimed = await claimPlan(tx, id, ids)
        return claimed ? [claimed] : []
      })
      if (!task) return
      await runTask(this.#options, task, plan, this.#abort.signal, RETRY_MS)
    }
  }

  /** Whether there was anything to claim. */
  async #closeSome(ids: readonly string[]): Promise<boolean> {
    const { leases } = this.#options
    const claims = await leases.claim((tx, id) => claimClosable(tx, id, ids, CHUNKS_PER_COMMIT_MAX))
    try {
      await this.#closeClaimed(claims)
    } finally {
      for (const claim of claims) leases.forget(claim)
    }
    return claims.length > 0
  }

  async #closeClaimed(claims: readonly ChunkRow[]): Promise<void> {
    const inputs = this.#options.reader.inputs(claims)
    for (const group of inGroups(claims)) {
      const sealed = await Promise.all(group.map((claim) => this.#seal(claim, inputs.get(claim.batch_id)!)))
      await this.#commit(sealed.filter((commit) => commit !== null))
    }
  }

  async #commit(commits: readonly RunCommit[]): Promise<void> {
    if (commits.length === 0) return
    const { store, clock, rules, leases, onEnded, observe } = this.#options
    let committed: Committed
    try {
      committed = await store.write((tx) => commitChunks(tx, commits, rules, clock.now()))
    } catch (error) {
      if (!(error instanceof StatementRejected)) throw error
      return await this.#isolate(commits, error)
    }
    const { lost, ended } = committed
    if (lost.length > 0) leases.suspect()
    for (const commit of commits) if (!lost.includes(commit)) observe?.committed(commit.fresh)
    for (const batch of ended) onEnded(batch)
  }

  /** Commits each chunk alone, and rejects the one in which the database rejects a value. */
  async #isolate(commits: readonly RunCommit[], error: StatementRejected): Promise<void> {
    const { store, leases } = this.#options
    const [first, ...others] = commits
    if (first && others.length === 0)
      leases.ended(await store.write((tx) => rejectChunk(tx, first.claim, error.message)))
    else for (const commit of commits) await this.#commit([commit])
  }

  /** Ends the lines of a chunk and seals it; null when it cannot be closed now, or its batch is not ending any more. */
  async #seal(claim: ChunkRow, reading: Promise<BatchInput>): Promise<RunCommit | null> {
    const { store, sealed, reader, restoreTries, clock, log, leases } = this.#options
    let lease = claim
    try {
      const input = await reading
      const reason = stopReason(input.batch, clock.now())
      if (reason === null) {
        await store.write((tx) => releaseChunk(tx, claim))
        return null
      }
      const run = await reader.read(claim, input)
      const { results } = run
      lease = results.lease
      restoreTries(run)
      // What was reserved when lines were sent may be used for others since.
      if (!run.allTries().next().done)
        run.isLimited = await hasBlockingLimit(store.read, claim.project_id, run.payers)
      endAll(run, reason, this.#expired.get(claim.batch_id), clock.now())
      const attempt = `${run.claim.epoch}-${clock.now().toString(36)}`
      const record = {
        sealed: await sealChunk(sealed, claim, attempt, results),
        journalled: results.isJournalled,
      }
      return { claim: lease, begunAt: null, fresh: results.takeFresh(), hasReservations: false, record }
    } catch (error) {
      log.error(
        { err: error, batch: claim.batch_id, chunk: claim.idx },
        'a chunk could not be closed; it is tried again later',
      )
      leases.ended(await store.write((tx) => parkChunk(tx, lease, RETRY_MS, 'stores_failing')))
      return null
    }
  }
}

function endAll(run: Run, reason: StopReason, expired: string | undefined, now: number): void {
  const error = wireError(reason, reason === 'batch_expired' ? expired : undefined)
  for (const position of run.positions()) {
    // A line that could never run keeps its own error, even if the batch expired.
    const own = run.lines[position]!.fault ?? error
    const attempts = run.triesOf(position) ?? NO_ATTEMPTS
    recordFailure(run.recorded(position), own, now, { attempts, expired: reason === 'batch_expired' })
    run.move(position, FINISHED, 'its batch is ending')
  }
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
