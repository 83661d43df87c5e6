// What batch APIs have of the chunks that are open here: which lines, what they have reserved, and what their answers
// cost. Lines that a batch API has are in `chunk.remote`; they are taken back when their results are recorded, or never
// will be.
import type { BatchApi } from '../../backends/batch-api/batch-api.ts'
import { type Clock, sleep } from '../../domain/clock.ts'
import { newId } from '../../domain/ids.ts'
import { addSpend, type Spend } from '../../domain/spend.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Outcome } from '../../results/outcome.ts'
import type { OpenAtBatchApi } from '../../store/due-remote-batches.ts'
import { linesOf, rangesOf } from '../../store/line-ranges.ts'
import {
  intendRemoteBatch,
  type RemoteReservation,
  settleRemoteBatch,
  unrecordedBatches,
} from '../../store/remote-batches.ts'
import type { RemoteBatchRow } from '../../store/schema.ts'
import type { Store } from '../../store/store.ts'
import type { Job } from '../send/lane.ts'
import type { Sender } from '../send/sender.ts'
import type { Upstream } from '../send/upstream.ts'
import { duplicatesOf } from './remote-duplicates.ts'

/** How often writing a row is tried before its chunk is left to whoever claims it next. */
const WRITES_MAX = 5

export interface RemoteRowsOptions {
  store: Store
  clock: Clock
  sender: () => Sender
  outagePatienceMs: number
  /** Resolves when the finished lines of these chunks are committed, or their leases are lost. */
  settle: (chunks: readonly OpenChunk[]) => Promise<void>
}

export class RemoteRows {
  readonly #options: RemoteRowsOptions
  readonly #rows = new WeakMap<OpenChunk, RemoteBatchRow[]>()
  /** How many intents are being stored, whose lines are no row's yet. */
  readonly #pending = new WeakMap<OpenChunk, number>()
  /** By line, what lines cost that batch APIs answered. */
  readonly #recorded = new WeakMap<OpenChunk, Map<number, number>>()

  constructor(options: RemoteRowsOptions) {
    this.#options = options
  }

  of(chunk: OpenChunk): readonly RemoteBatchRow[] {
    return this.#rows.get(chunk) ?? []
  }

  /** The upstream that has the batch; undefined if it is no longer configured. */
  upstreamOf({ model, upstream }: Pick<RemoteBatchRow, 'model' | 'upstream'>): Upstream | undefined {
    const lane = this.#options.sender().lanes.get(model)
    return lane?.upstreams.find(({ name, batches }) => name === upstream && batches !== null)
  }

  /** How many lines batch APIs have, so that those with fewer get more. */
  sawOpen(open: readonly OpenAtBatchApi[]): void {
    for (const { model, upstreams } of this.#options.sender().lanes.values())
      for (const one of upstreams)
        if (one.batches !== null)
          one.sawLines(open.find((at) => at.model === model && at.upstream === one.name)?.lines ?? 0)
  }

  /** Whether lines at a batch API that has not answered since then (Unix ms) are to be finished elsewhere. */
  mayGiveUp(
    row: Pick<RemoteBatchRow, 'model' | 'upstream'>,
    failing_since: number,
    isStopped: boolean,
  ): boolean {
    const { clock, outagePatienceMs, sender } = this.#options
    if (clock.now() - failing_since < outagePatienceMs) return false
    const upstream = this.upstreamOf(row)
    return isStopped || upstream === undefined || (sender().lanes.get(row.model)?.mayLeave(upstream) ?? true)
  }

  /** Whether servers that answer at once may answer its lines. */
  mayReplace(row: Pick<RemoteBatchRow, 'model' | 'upstream'>): boolean {
    const upstream = this.upstreamOf(row)
    return (
      upstream !== undefined && (this.#options.sender().lanes.get(row.model)?.mayReplace(upstream) ?? false)
    )
  }

  /** Finds the lines of a claimed chunk that batch APIs have. */
  async load(chunk: OpenChunk): Promise<void> {
    const { claim } = chunk
    if (claim.remote_batches === 0 || claim.record_error !== null) return
    const rows = await unrecordedBatches(this.#options.store.read, claim)
    const positions = new Map(chunk.lines.map(({ line }, position) => [line, position]))
    for (const row of rows) {
      for (const line of linesOf(row)) {
        const position = positions.get(line)
        if (position === undefined || chunk.isFinished(position)) continue
        // The input is gone: such a line ends with its own error.
        if (chunk.lines[position]!.fault !== null) continue
        chunk.remote.add(position)
        chunk.reserveOn(position, row.day)
      }
    }
    for (const position of duplicatesOf(chunk)) chunk.remote.add(position)
    this.#rows.set(chunk, rows)
    this.#recorded.set(chunk, new Map())
  }

  /** Stores the intent; null if the lease is lost. The lines are reserved under the limits of one day, or of none. */
  async intend(chunk: OpenChunk, upstream: Upstream, jobs: readonly Job[]): Promise<RemoteBatchRow | null> {
    this.#count(chunk, 1)
    try {
      return await this.#intend(chunk, upstream, jobs)
    } finally {
      this.#count(chunk, -1)
    }
  }

  #count(chunk: OpenChunk, by: 1 | -1): void {
    this.#pending.set(chunk, (this.#pending.get(chunk) ?? 0) + by)
  }

  async #intend(chunk: OpenChunk, upstream: Upstream, jobs: readonly Job[]): Promise<RemoteBatchRow | null> {
    const { store, clock } = this.#options
    const created = clock.now()
    const lineOf = ({ position }: Job): number => chunk.lines[position]!.line
    const lines = rangesOf(jobs.map(lineOf))
    const positions = jobs.map(({ position }) => position)
    const reserved = positions.filter((position) => chunk.reserved.has(position))
    const reservation = reservationOf(chunk, positions)
    const moved = reservationOf(chunk, reserved)
    const { name } = upstream
    const [first] = positions as [number]
    const intent = {
      id: newId('remote', created),
      model: chunk.lines[first]!.model!,
      upstream: name,
      created,
      line_count: jobs.length,
      day: chunk.reservedOn(first),
    }
    const isStored = await this.stored(() =>
      store.write((tx) => intendRemoteBatch(tx, chunk.claim, { ...intent, lines, reservation, moved })),
    )
    if (!isStored) return null
    for (const position of reserved) chunk.reserved.delete(position)
    const { batch_id, idx, project_id } = chunk.claim
    const row: RemoteBatchRow = {
      ...intent,
      batch_id,
      idx,
      project_id,
      state: 'intended',
      lines: JSON.stringify(lines),
      reserved: JSON.stringify(reservation),
      file_id: null,
      remote_id: null,
      output_file_id: null,
      error_file_id: null,
      status: null,
      detail: null,
      creating_at: null,
      creations: 0,
      cancelled_at: null,
      failing_since: null,
      poll_at: null,
      answered: 0,
      cost_nanos: 0,
      remote_report: null,
    }
    this.#rows.set(chunk, [...(this.#rows.get(chunk) ?? []), row])
    return row
  }

  /** What a line cost that ended. */
  ended(chunk: OpenChunk, { line, code, cost_nanos }: Outcome): void {
    if (code === 'ok') this.#recorded.get(chunk)?.set(line, cost_nanos)
  }

  /**
   * No result of the batch will be recorded: its lines are the worker's own again. `left`: what may be there of it. False
   * if the lease is lost.
   */
  async giveBack(
    chunk: OpenChunk,
    row: RemoteBatchRow,
    jobs: readonly Job[],
    left: 'nothing' | 'file' | 'batch',
  ): Promise<boolean> {
    const { clock, sender } = this.#options
    const state = left === 'batch' ? 'abandoned' : left === 'file' ? 'recorded' : 'done'
    if (!(await this.#settleAs(chunk, row, jobs, state, state === 'done' ? null : clock.now()))) return false
    if (this.upstreamOf(row) === undefined)
      sender().resume(
        chunk,
        jobs.map(({ position }) => position),
        [],
      )
    return true
  }

  /** Lines of the batch that are not recorded may be sent from here on, and those that waited for them. */
  #release(chunk: OpenChunk, row: RemoteBatchRow): void {
    // A check of the limits leaves out lines that are at a batch API.
    if (chunk.limitsSeen.version > 0) for (const position of chunk.remote) chunk.unchecked.add(position)
    const rest = (this.#rows.get(chunk) ?? []).filter((one) => one !== row)
    this.#rows.set(chunk, rest)
    if (rest.length === 0 && !this.#pending.get(chunk)) {
      const lines = new Set(linesOf(row))
      const others = [...chunk.remote].filter((position) => !lines.has(chunk.lines[position]!.line))
      chunk.remote.clear()
      this.#options.sender().resume(chunk, others, [])
      return
    }
    for (const line of linesOf(row)) chunk.remote.delete(chunk.positionOf(line))
  }

  jobsOf(chunk: OpenChunk, row: RemoteBatchRow): Job[] {
    const jobs: Job[] = []
    for (const line of linesOf(row)) {
      const position = chunk.positionOf(line)
      if (chunk.remote.has(position)) jobs.push(this.#options.sender().jobOf(chunk, position))
    }
    return jobs
  }

  /** When all that it answered is committed, the lines that it left count as in flight. False if the lease is lost. */
  async settle(chunk: OpenChunk, row: RemoteBatchRow, left: readonly Job[]): Promise<boolean> {
    const { clock, settle } = this.#options
    await settle([chunk])
    return await this.#settleAs(chunk, row, left, 'recorded', clock.now())
  }

  async #settleAs(
    chunk: OpenChunk,
    row: RemoteBatchRow,
    left: readonly Job[],
    state: 'recorded' | 'abandoned' | 'done',
    poll_at: number | null,
  ): Promise<boolean> {
    const { store } = this.#options
    if (chunk.stopped === 'lost') return false
    const costs = [...linesOf(row)].flatMap((line) => this.#recorded.get(chunk)?.get(line) ?? [])
    const cost_nanos = costs.reduce((sum, cost) => sum + cost, 0)
    const lines = new Set(linesOf(row))
    const answered = chunk
      .allFinished()
      .filter(({ line, part }) => part === 'output' && lines.has(line)).length
    const change = { state, answered, cost_nanos, poll_at }
    const positions = left.map(({ position }) => position)
    const isOurs = await this.stored(() =>
      store.write((tx) => settleRemoteBatch(tx, row, chunk.claim.epoch, change, spendOf(chunk, positions))),
    )
    if (!isOurs) return false
    for (const position of positions) chunk.reserved.add(position)
    if (positions.length > 0) chunk.hasReservations = true
    this.#release(chunk, row)
    return true
  }

  /** Writes a row; a write may be repeated. */
  async stored(write: () => Promise<boolean>): Promise<boolean> {
    const { clock } = this.#options
    for (let tries = 1; ; tries++) {
      try {
        return await write()
      } catch (error) {
        if (tries === WRITES_MAX) throw error
        await sleep(clock, 200 * tries)
      }
    }
  }
}

export function apiOf({ batches }: Upstream): BatchApi {
  if (batches === null) throw new Error('the upstream is no batch API')
  return batches
}

function reservationOf(chunk: OpenChunk, positions: readonly number[]): RemoteReservation {
  return [...spendOf(chunk, positions)].map(([entity, { cost_nanos, tokens }]) => [
    entity,
    cost_nanos,
    tokens,
  ])
}

function spendOf(chunk: OpenChunk, positions: readonly number[]): Map<string | null, Spend> {
  const spend = new Map<string | null, Spend>()
  for (const position of positions) {
    const { entity, projected } = chunk.lines[position]!
    addSpend(spend, entity, projected)
  }
  return spend
}
