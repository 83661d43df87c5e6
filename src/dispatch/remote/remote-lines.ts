// The lines of open chunks that batch APIs answer. A chunk's lines are handed over as a batch there; the chunk is parked
// until that has ended, and keeps no lease, no memory and no place meanwhile (remote-poller.ts looks at the batch). The
// worker that claims the chunk then records the results line by line, as if each line had been sent alone.

import type { ResponseMemory } from '../../backends/response-memory.ts'
import type { Clock } from '../../domain/clock.ts'
import type { Log } from '../../domain/log.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { RemoteBatchRow } from '../../store/schema.ts'
import type { Store } from '../../store/store.ts'
import type { ReservedFunds } from '../limits/reserved-funds.ts'
import type { Job } from '../send/lane.ts'
import type { Sender } from '../send/sender.ts'
import type { Call, Upstream } from '../send/upstream.ts'
import { recallAt } from './recall.ts'
import { RemoteCollector, throttledAgain } from './remote-collect.ts'
import { distinct } from './remote-duplicates.ts'
import { endpointOf, fileOf, metadataOf } from './remote-file.ts'
import { RemoteIntents } from './remote-intent.ts'
import { apiOf, RemoteRows } from './remote-rows.ts'

/** How long a chunk is parked at most before it is looked at for its own sake. */
const PARK_MS = 3_600_000
/** With these statuses, a batch API refuses what it is sent. */
const LINES_AT_FAULT = [400, 413, 422]
/** How long a chunk waits after a store failed. */
const FAILED_MS = 1_000

export interface RemoteLinesOptions {
  store: Store
  clock: Clock
  log: Log
  random: () => number
  sender: () => Sender
  funds: Pick<ReservedFunds, 'draw'>
  answers: Pick<ResponseMemory, 'hasRoom'>
  isCertain: () => boolean
  isPaused: (chunk: OpenChunk, model: string) => boolean
  isOverLimit: (chunk: OpenChunk) => Promise<boolean>
  isOpen: (chunk: OpenChunk) => boolean
  outagePatienceMs: number
  onBegun: (chunk: OpenChunk) => void
  onInsufficientFunds: (chunk: OpenChunk) => void
  /** Resolves when the finished lines of these chunks are committed, or their leases are lost. */
  settle: (chunks: readonly OpenChunk[]) => Promise<void>
  park: (chunk: OpenChunk, runAt: number) => void
}

export class RemoteLines {
  readonly #options: RemoteLinesOptions
  readonly #intents: RemoteIntents
  readonly #rows: RemoteRows
  readonly #collector: RemoteCollector
  /** When an open chunk has to be looked at again (Unix ms). */
  readonly #lookAt = new WeakMap<OpenChunk, number>()
  /** Attached, and not opened yet. */
  readonly #attached = new WeakSet<OpenChunk>()
  readonly #abort = new AbortController()

  constructor(options: RemoteLinesOptions) {
    this.#options = options
    this.#rows = new RemoteRows(options)
    this.#collector = new RemoteCollector({ ...options, rows: this.#rows })
    this.#intents = new RemoteIntents({
      ...options,
      mayGiveUp: (row, since, chunk) => this.#rows.mayGiveUp(row, since, chunk.stopped !== null),
    })
  }

  get rows(): RemoteRows {
    return this.#rows
  }

  /** Before a chunk is opened. */
  async attach(chunk: OpenChunk): Promise<void> {
    await this.#rows.load(chunk)
    this.#attached.add(chunk)
  }

  /** Calls under way end; the worker stops. */
  abort(): void {
    this.#abort.abort()
  }

  /** After a chunk was opened. */
  opened(chunk: OpenChunk): void {
    this.#attached.delete(chunk)
    for (const row of this.#rows.of(chunk)) {
      if (row.state === 'ended') this.#during(chunk, () => this.#collect(chunk, row))
      else if (row.state !== 'open') this.#during(chunk, () => this.#resume(chunk, row))
    }
    this.parkIfIdle(chunk)
  }

  /** Takes lines of one chunk and one model for a batch API. */
  handOver(upstream: Upstream, jobs: readonly Job[]): void {
    const { clock, sender, funds, onInsufficientFunds, onBegun } = this.#options
    const now = clock.now()
    const [{ chunk }] = jobs as [Job]
    sender().remember(
      chunk,
      jobs.filter(({ attempts }) => attempts.length > 0),
    )
    if (now >= chunk.claim.deadline) {
      sender().stop(chunk, 'batch_expired', true)
      return
    }
    if (this.#isTooLate(chunk, upstream, jobs)) return
    const unknown = jobs.filter((job) => !sender().share(job))
    const asked = distinct(unknown)
    // Lines of another day are checked again and go with a later batch: those of one batch are charged to one day.
    const day = asked[0] ? chunk.reservedOn(asked[0].position) : null
    const taken = asked.filter(({ position }) => {
      const isCovered = chunk.reservedOn(position) === day && funds.draw(chunk, position)
      if (!isCovered) chunk.waiting.add(position)
      return isCovered
    })
    // Lines that are sent for others come back before those are sent.
    for (const { position } of unknown) if (!chunk.waiting.has(position)) chunk.remote.add(position)
    if (unknown.some(({ position }) => chunk.waiting.has(position))) onInsufficientFunds(chunk)
    if (taken.length === 0) return
    taken.sort((a, b) => a.position - b.position)
    // No line of them is to blame if they are not taken.
    const probe = { batch_id: chunk.batch.id, missedBefore: false, line: taken[0]!.tries }
    const call = upstream.begin(probe, now)
    if (chunk.begunAt === null && chunk.batch.status === 'queued') {
      chunk.begunAt = now
      onBegun(chunk)
    }
    this.#during(chunk, () => this.#submit(chunk, upstream, taken, call))
  }

  /** Whether it would answer them too late, and others are there that may not. */
  #isTooLate(chunk: OpenChunk, upstream: Upstream, jobs: readonly Job[]): boolean {
    const { clock, sender } = this.#options
    const lane = sender().lanes.get(chunk.lines[jobs[0]!.position]!.model!)
    if (clock.now() < recallAt(chunk.batch) || !lane?.mayReplace(upstream)) return false
    for (const job of jobs) {
      job.avoid = upstream
      lane.retry(job, clock.now())
    }
    return true
  }

  /** Parks a chunk of which nothing is left to do here. */
  parkIfIdle(chunk: OpenChunk): void {
    const { clock, sender, isOpen, park } = this.#options
    if (chunk.remote.size === 0 || chunk.inFlight > 0 || chunk.parking || isGone(chunk)) return
    if (this.#attached.has(chunk)) return
    if (!isOpen(chunk) || chunk.unfinished > chunk.remote.size + sender().withheld(chunk)) return
    const now = clock.now()
    park(chunk, Math.min(this.#lookAt.get(chunk) ?? now + PARK_MS, now + PARK_MS))
  }

  /** Work under way counts as a line in flight: the chunk is neither parked nor ended before it is done. */
  #during(chunk: OpenChunk, work: () => Promise<void>): void {
    const { sender, log, clock } = this.#options
    chunk.inFlight++
    work()
      .catch((error: unknown) => {
        const { id: batch } = chunk.batch
        log.error(
          { err: error, batch, chunk: chunk.claim.idx },
          'work on a remote batch failed; it is tried again',
        )
        this.#lookAgainAt(chunk, clock.now() + FAILED_MS)
      })
      .finally(() => {
        chunk.inFlight--
        sender().endIfIdle(chunk)
        this.parkIfIdle(chunk)
        sender().pump()
      })
  }

  #lookAgainAt(chunk: OpenChunk, at: number): void {
    this.#lookAt.set(chunk, Math.min(Math.round(at), this.#lookAt.get(chunk) ?? Number.POSITIVE_INFINITY))
  }

  async #submit(chunk: OpenChunk, upstream: Upstream, jobs: readonly Job[], call: Call): Promise<void> {
    const { clock } = this.#options
    let row: RemoteBatchRow | null = null
    upstream.handOver(jobs.length)
    try {
      row = await this.#rows.intend(chunk, upstream, jobs).catch((error: unknown) => {
        upstream.withdraw(call, clock.now())
        throw error
      })
      if (row === null) upstream.withdraw(call, clock.now())
      else await this.#pursue(chunk, row, { upstream, jobs, call })
    } finally {
      upstream.handedOver(jobs.length, row?.state === 'open')
    }
  }

  async #collect(chunk: OpenChunk, row: RemoteBatchRow): Promise<void> {
    const again = await this.#collector.collect(chunk, row, this.#abort.signal)
    if (again !== null) this.#lookAgainAt(chunk, again)
  }

  /** Continues what another worker, or this one before, has begun. */
  async #resume(chunk: OpenChunk, row: RemoteBatchRow): Promise<void> {
    const upstream = this.#rows.upstreamOf(row)
    const jobs = this.#rows.jobsOf(chunk, row)
    if (upstream) await this.#pursue(chunk, row, { upstream, jobs, call: null })
    else await this.#rows.giveBack(chunk, row, jobs, 'batch')
  }

  async #pursue(
    chunk: OpenChunk,
    row: RemoteBatchRow,
    { upstream, jobs, call }: { upstream: Upstream; jobs: readonly Job[]; call: Call | null },
  ): Promise<void> {
    const { clock } = this.#options
    const api = apiOf(upstream)
    const at = clock.now()
    const end = await this.#intents
      .pursue({
        chunk,
        row,
        isNew: call !== null,
        api,
        signal: this.#abort.signal,
        endpoint: endpointOf(chunk, jobs),
        content: () => fileOf(jobs, upstream, api.lineMetadata),
        metadata: metadataOf(chunk),
      })
      .catch((error: unknown) => {
        if (call) upstream.withdraw(call, clock.now())
        throw error
      })
    const now = clock.now()
    if (call) {
      if (end.kind === 'open') upstream.took(call, now)
      else if (end.kind === 'returned') upstream.end(call, end.result, now)
      else upstream.withdraw(call, now)
    }
    if (end.kind === 'later') this.#lookAgainAt(chunk, end.at)
    if (end.kind !== 'returned' && end.kind !== 'unsent') return
    if (!(await this.#rows.giveBack(chunk, row, jobs, end.kind === 'unsent' ? 'file' : end.left))) {
      this.#lookAgainAt(chunk, now + FAILED_MS)
      return
    }
    if (end.kind === 'unsent') {
      const positions = jobs.map(({ position }) => position)
      return this.#options.sender().resume(chunk, positions, [])
    }
    const blame = LINES_AT_FAULT.includes(end.result.status ?? 0) ? 'line' : 'server'
    const stays = blame === 'server' && end.left !== 'batch'
    const result = end.result.kind === 'throttled' ? throttledAgain(end.result, jobs) : end.result
    const draw = this.#options.random()
    for (const job of jobs)
      this.#options.sender().concludeRemote(job, { upstream, result, at, blame, stays, draw })
  }
}

/** Nothing of the chunk is this worker's to decide any more. */
function isGone({ stopped }: OpenChunk): boolean {
  return stopped === 'lost' || stopped === 'drained'
}
