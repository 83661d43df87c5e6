// Keeps the rows of the remote batches of this worker's runs, and the reservations of their lines. A line of a row is
// `remote` in its run until its result is recorded or can no longer be.

import { sleep } from '../../../domain/clock.ts'
import { newId } from '../../../domain/ids.ts'
import { addSpend, type Spend } from '../../../domain/money.ts'
import type { Recorder } from '../../../results/recorder.ts'
import {
  intendRemoteBatch,
  linesOf,
  type OpenAtBatchApi,
  type RemoteReservation,
  rangesOf,
  settleRemoteBatch,
  unrecordedBatches,
} from '../../../store/remote-batches.ts'
import type { RemoteBatchRow } from '../../../store/schema.ts'
import type { Ports } from '../../../store/store.ts'
import type { Duplicates } from '../../gates/duplicates.ts'
import type { ReservedFunds } from '../../gates/limits/reserved-funds.ts'
import type { RetryPolicy } from '../../gates/retries.ts'
import { REMOTE, UNFUNDED } from '../../line-state.ts'
import type { Lines } from '../../lines.ts'
import type { Run } from '../../run.ts'
import type { Lane } from '../lane.ts'
import { BatchApiUpstream } from './batch-api-upstream.ts'
import { cancelMs, recallAt, type Until, untilDeadline, type Window } from './deadline.ts'

/** The number of attempts to write a row before its chunk is left to the worker that claims it next. */
const WRITES_MAX = 5

export interface RemoteRowsOptions extends Pick<Ports, 'store' | 'clock'> {
  lanes: ReadonlyMap<string, Lane>
  lines: Pick<Lines, 'place'> & { duplicates: Pick<Duplicates, 'lead'> }
  funds: Pick<ReservedFunds, 'setReserved'>
  retry: Pick<RetryPolicy, 'outage_patience_ms'>
  recorder: Pick<Recorder<Run>, 'settle'>
}

export class RemoteRows {
  readonly #options: RemoteRowsOptions
  readonly #rows = new WeakMap<Run, RemoteBatchRow[]>()

  constructor(options: RemoteRowsOptions) {
    this.#options = options
  }

  of(run: Run): readonly RemoteBatchRow[] {
    return this.#rows.get(run) ?? []
  }

  /** The upstream that has the batch; undefined if it is no longer configured. */
  upstreamOf({ model, upstream }: Pick<RemoteBatchRow, 'model' | 'upstream'>): BatchApiUpstream | undefined {
    const found = this.#options.lanes.get(model)?.upstreams.find(({ name }) => name === upstream)
    return found instanceof BatchApiUpstream ? found : undefined
  }

  /** Whether this batch API, or any, is configured for a model. */
  hasBatchApi(name?: string): boolean {
    for (const { upstreams } of this.#options.lanes.values())
      for (const one of upstreams)
        if (one instanceof BatchApiUpstream && (name === undefined || one.name === name)) return true
    return false
  }

  /** Records the lines at batch APIs: batch APIs with fewer lines get more, and projects with fewer go first. */
  sawOpen(open: readonly OpenAtBatchApi[]): void {
    for (const { model, upstreams } of this.#options.lanes.values())
      for (const one of upstreams)
        if (one instanceof BatchApiUpstream)
          one.sawLines(
            new Map(
              open
                .filter((at) => at.model === model && at.upstream === one.name)
                .map(({ project_id, lines }) => [project_id, lines]),
            ),
          )
  }

  /** Whether lines of a failed batch are to be finished elsewhere. `isGone`: the batch API does not have them. */
  mayGiveUp(
    row: Pick<RemoteBatchRow, 'model' | 'upstream'>,
    window: Window,
    failing_since: number,
    isGone: boolean,
  ): boolean {
    const { clock, retry, lanes } = this.#options
    const now = clock.now()
    const failingMs = now - failing_since
    if (failingMs >= cancelMs(window) && now >= recallAt(window) && this.mayReplace(row)) return true
    if (failingMs < retry.outage_patience_ms) return false
    const upstream = this.upstreamOf(row)
    if (isGone || upstream === undefined) return true
    return (lanes.get(row.model)?.route.besides(upstream).length ?? 1) > 0
  }

  /** Whether servers may answer the batch's lines at once. */
  mayReplace(row: Pick<RemoteBatchRow, 'model' | 'upstream'>): boolean {
    const { clock, lanes } = this.#options
    const upstream = this.upstreamOf(row)
    return upstream !== undefined && (lanes.get(row.model)?.route.mayReplace(upstream, clock.now()) ?? false)
  }

  watch(run: Run, row: RemoteBatchRow, stop: AbortSignal): Until {
    return untilDeadline(run, row, this.#options.clock, () => this.mayReplace(row), stop)
  }

  /** Places remote lines, for which no result of a batch API will be recorded. */
  place(run: Run, positions: readonly number[], cause: string): void {
    for (const position of positions)
      if (run.stateOf(position) === REMOTE) this.#options.lines.place(run, position, cause)
  }

  async load(run: Run): Promise<void> {
    const { claim } = run
    if (claim.remote_batches === 0) return
    const { read } = this.#options.store
    const rows = await unrecordedBatches(read, claim)
    const positions = new Map(run.lines.map(({ line }, position) => [line, position]))
    for (const row of rows) {
      for (const line of linesOf(row)) {
        const position = positions.get(line)
        // It cannot be read any more: such a line ends with its own error. Other faults are those of lines to send.
        if (position === undefined || run.lines[position]!.model === null) continue
        if (run.stateOf(position) !== UNFUNDED) continue
        run.move(position, REMOTE, 'a batch API has it')
        run.reserveOn(position, row.day)
        this.#options.lines.duplicates.lead(run, position)
      }
    }
    this.#rows.set(run, rows)
  }

  /** Stores that lines of one model and day of reservation are about to be handed over; null: the lease is lost. */
  async intend(
    run: Run,
    upstream: BatchApiUpstream,
    positions: readonly number[],
  ): Promise<RemoteBatchRow | null> {
    const { store, clock, funds } = this.#options
    const created = clock.now()
    const lines = rangesOf(positions.map((position) => run.lines[position]!.line))
    const reservation = reservationOf(run, positions)
    const reserved = positions.filter((position) => run.isReserved(position))
    const moved = reservationOf(run, reserved)
    const model = run.lines[positions[0]!]!.model!
    const intent = {
      id: newId('remote', created),
      model,
      upstream: upstream.name,
      created,
      line_count: positions.length,
      day: run.reservedOn(positions[0]!),
    }
    const row = await this.stored(() =>
      store.write((tx) => intendRemoteBatch(tx, run.claim, { ...intent, lines, reservation, moved })),
    )
    if (row === undefined) return null
    for (const position of reserved) funds.setReserved(run, position, false)
    this.#rows.set(run, [...this.of(run), row])
    return row
  }

  /** The lines of a batch that are still remote, in input order. */
  positionsOf(run: Run, row: RemoteBatchRow): number[] {
    const lines = new Set(linesOf(row))
    return run.positions(REMOTE).filter((position) => lines.has(run.lines[position]!.line))
  }

  /** Remote lines without a batch, since their batch was refused. */
  unclaimed(run: Run, positions: readonly number[]): number[] {
    const there = new Set(this.of(run).flatMap((row) => this.positionsOf(run, row)))
    return positions.filter((position) => run.stateOf(position) === REMOTE && !there.has(position))
  }

  /**
   * Ends the part of a batch in the run, once what it answered is committed: the reservation of its lines that are still
   * remote is the run's own again. `status`: how it ended, unless that is stored already. False if the lease is lost; then
   * the worker that has it now settles the batch.
   */
  async settle(
    run: Run,
    row: RemoteBatchRow,
    state: 'recorded' | 'abandoned' | 'done',
    status?: string,
  ): Promise<boolean> {
    const { store, clock, recorder, funds } = this.#options
    const positions = this.positionsOf(run, row)
    const returned = reservationOf(run, positions)
    const lines = new Set(linesOf(row))
    const { results } = run
    const answered = run.lines.filter(
      ({ line }, position) => lines.has(line) && results.isFinished(position) && !results.isError(position),
    ).length
    await recorder.settle([run])
    if (run.stopped === 'lost') return false
    const poll_at = state === 'done' ? null : clock.now()
    const { cost_nanos } = row
    const change = { state, answered, cost_nanos, poll_at, ...(status !== undefined && { status }) }
    const isOurs = await this.stored(() =>
      store.write((tx) => settleRemoteBatch(tx, row, run.claim.epoch, change, returned)),
    )
    if (!isOurs) return false
    this.#rows.set(
      run,
      this.of(run).filter((one) => one !== row),
    )
    for (const position of run.isClosed ? [] : positions) {
      funds.setReserved(run, position, true)
      // Limits may have changed while it was there.
      run.setAllowed(position, false)
    }
    if (positions.length > 0) results.hasReservations = true
    return true
  }

  /** Writes a row; a write may be repeated. */
  async stored<Result>(write: () => Promise<Result>): Promise<Result> {
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

function reservationOf(run: Run, positions: readonly number[]): RemoteReservation {
  const spend = new Map<string | null, Spend>()
  for (const position of positions) {
    const { entity, projected } = run.lines[position]!
    addSpend(spend, entity, projected)
  }
  return [...spend].map(([entity, { cost_nanos, tokens, requests }]) => [
    entity,
    cost_nanos,
    tokens,
    requests,
  ])
}
