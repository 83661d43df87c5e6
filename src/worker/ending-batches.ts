// Ends the remaining lines of batches that are past their `expires_at`, cancelled, or without their input. These lines
// are not sent, so this needs no model server, no reservation and no slot, and it goes before all other work. Chunks
// are claimed under the same leases as others, and recorded as others are. Each worker stops the runs that it has open
// itself (dispatch.ts).
import { FINISHED } from '../dispatch/line-state.ts'
import type { Run } from '../dispatch/run.ts'
import { type StopReason, stopReason } from '../domain/batch.ts'
import { wireError } from '../domain/errors.ts'
import type { Model } from '../domain/model.ts'
import { type Leases, Rounds } from '../leases/leases.ts'
import { runTask } from '../leases/task-runner.ts'
import { hasBlockingLimit } from '../ledger/counters.ts'
import { noteExpired } from '../progress/waiting-reason.ts'
import { NO_ATTEMPTS } from '../results/line-record.ts'
import { recordFailure } from '../results/record-line.ts'
import type { Recorder } from '../results/recorder.ts'
import type { BatchInput } from '../store/batches.ts'
import { claimClosable, claimPlan, listEnding } from '../store/chunk-claims.ts'
import { parkChunk, releaseChunk } from '../store/chunks.ts'
import type { ChunkRow } from '../store/schema.ts'
import type { Ports } from '../store/store.ts'
import type { TaskHandler } from '../store/tasks.ts'
import type { ChunkReader } from './claim/chunk-reader.ts'

const BATCHES_MAX = 100
/** The limit of chunks claimed in one transaction, and the bytes of input up to which they are read together. */
const CHUNKS_AT_ONCE_MAX = 16
const BYTES_AT_ONCE_MAX = 8 * 1024 * 1024
/** The wait of a chunk or a plan in ms after a failure of a store. */
const RETRY_MS = 1_000

interface EndingBatchesOptions extends Ports {
  reader: ChunkReader
  recorder: Pick<Recorder<Run>, 'track' | 'settle'>
  leases: Leases
  models: ReadonlyMap<string, Model>
  onlyBatches?: ReadonlySet<string> | undefined
  /** Makes the chunks of a batch that ends before it was planned. */
  plan: TaskHandler
  /** Restores the tries of a run's lines. */
  tries: { restore: (run: Run) => void }
}

export class EndingBatches {
  readonly #options: EndingBatchesOptions
  readonly #abort = new AbortController()
  readonly #aborted = new Promise<void>((resolve) =>
    this.#abort.signal.addEventListener('abort', () => resolve()),
  )
  readonly #rounds = new Rounds(() => this.#closeAll())
  /** The messages of lines that expire, by batch. */
  #expired: ReadonlyMap<string, string> = new Map()

  constructor(options: EndingBatchesOptions) {
    this.#options = options
  }

  /** Closes all closable chunks; a call meanwhile causes one more round. */
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

  /** Closes some chunks; returns whether there was anything to claim. */
  async #closeSome(ids: readonly string[]): Promise<boolean> {
    const { leases, reader } = this.#options
    const claims = await leases.claim((tx, id) => claimClosable(tx, id, ids, CHUNKS_AT_ONCE_MAX))
    const inputs = reader.inputs(claims)
    let closing: Promise<void>[] = []
    let bytes = 0
    for (const claim of claims) {
      bytes += claim.byte_end - claim.byte_start
      closing.push(this.#close(claim, inputs.get(claim.batch_id)!).finally(() => leases.forget(claim)))
      if (bytes < BYTES_AT_ONCE_MAX) continue
      await Promise.all(closing)
      closing = []
      bytes = 0
    }
    await Promise.all(closing)
    return claims.length > 0
  }

  /** Ends the lines of a chunk and has it sealed, unless it cannot be closed now, or its batch is not ending any more. */
  async #close(claim: ChunkRow, reading: Promise<BatchInput>): Promise<void> {
    const { store, reader, recorder, tries, clock, log, leases } = this.#options
    let lease = claim
    try {
      const input = await reading
      const reason = stopReason(input.batch, clock.now())
      if (reason === null) {
        await store.write((tx) => releaseChunk(tx, claim))
        return
      }
      const run = await reader.read(claim, input)
      lease = run.results.lease
      tries.restore(run)
      // What was reserved when lines were sent may be used for others since.
      if (!run.allTries().next().done)
        run.isLimited = await hasBlockingLimit(store.read, claim.project_id, run.payers)
      endAll(run, reason, this.#expired.get(claim.batch_id), clock.now())
      recorder.track(run)
      // A worker that stops flushes its recorder; the API leaves the chunk to the next process.
      await Promise.race([recorder.settle([run]), this.#aborted])
    } catch (error) {
      log.error(
        { err: error, batch: claim.batch_id, chunk: claim.idx },
        'a chunk could not be closed; it is tried again later',
      )
      leases.ended(await store.write((tx) => parkChunk(tx, lease, RETRY_MS, 'stores_failing')))
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
