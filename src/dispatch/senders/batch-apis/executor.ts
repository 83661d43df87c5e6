// The executor of lines that batch APIs answer. Lines of a run that are to go to a batch API are submitted as one
// remote batch; the run is then parked until that batch has ended, and uses no lease, memory or slot meanwhile
// (poller.ts polls the batch). The worker that claims the chunk next records the results line by line, as if each line
// had been sent alone; a line without a result is placed like any other line.
//
// The project with the fewest lines at a batch API goes first there: a run is one call, but a thousand lines.
import type { BlamedLine } from '../../../backends/batch-api/batch-api.ts'
import type { Call, EndedAttempt, MissedResult } from '../../../servers/upstream.ts'
import { batchesOfChunk, linesOf } from '../../../store/remote-batches.ts'
import type { RemoteBatchRow } from '../../../store/schema.ts'
import { IllegalTransition, REMOTE, UNSUBMITTED } from '../../line-state.ts'
import type { Lines } from '../../lines.ts'
import type { Run } from '../../run.ts'
import type { Turn } from '../../turn.ts'
import { BatchApiUpstream } from './batch-api-upstream.ts'
import { Collector, type CollectorOptions, throttledAgain } from './collect.ts'
import { type CreationEnd, Creations, type CreationsOptions, remoteIdOf } from './creation.ts'
import { lastCallAt, nextMark, recallAt } from './deadline.ts'
import { RemoteRows, type RemoteRowsOptions } from './rows.ts'

/** The longest time in ms for which a run is parked before it is claimed again. */
const PARK_MS = 3_600_000
/** The wait of a run in ms after a store has failed. */
const FAILED_MS = 1_000
/** The most batches made of a chunk to find rejected lines: enough for some eight of 1,000 lines where none is named. */
const BATCHES_MAX = 150
/** The number of lines that are offered to a batch API one by one, before it counts as refusing all lines. */
const PROBES = 3
/** The number of batches whose failure for unnamed lines shows that the batch API refuses all lines. */
const REFUSED_LATER_MAX = 12
/** The status of a batch that was never created, since its batch API blames lines of it. */
const REFUSED = 'refused'

interface ExecutorOptions
  extends Omit<CreationsOptions, 'rows'>,
    RemoteRowsOptions,
    Omit<CollectorOptions, 'rows'> {
  lines: Lines
  turn: Pick<Turn, 'push' | 'touch'>
  /** Batches that may miss their deadline. */
  atRisk: ReadonlySet<string>
}

interface HandOver {
  run: Run
  upstream: BatchApiUpstream
  positions: number[]
}

export class RemoteExecutor {
  readonly rows: RemoteRows
  readonly #options: ExecutorOptions
  readonly #creations: Creations
  readonly #collector: Collector
  /** The time of the next claim of an open run (Unix ms). */
  readonly #lookAt = new WeakMap<Run, number>()
  /** The parts of runs by position, which are handed over one by one after a line of them was rejected. */
  readonly #parts = new WeakMap<Run, Map<number, number>>()
  #nextPart = 1
  readonly #abort = new AbortController()

  constructor(options: ExecutorOptions) {
    this.#options = options
    this.rows = new RemoteRows(options)
    const shared = { ...options, rows: this.rows }
    this.#creations = new Creations(shared)
    this.#collector = new Collector(shared)
  }

  abort(): void {
    this.#abort.abort()
  }

  opened(run: Run): void {
    for (const row of this.rows.of(run)) {
      const upstream = this.rows.upstreamOf(row)
      // Its lines have ended otherwise, and may wait for what it has reserved.
      const isIdle = row.state !== 'ended' && this.rows.positionsOf(run, row).length === 0
      if (isIdle || (!upstream && row.state !== 'open')) this.#during(run, () => this.#giveUp(run, row))
      else if (upstream && row.state === 'ended') this.#during(run, () => this.#collect(run, row, upstream))
      // What another worker, or this one before, has begun.
      else if (upstream && row.state !== 'open')
        this.#during(run, async () => void (await this.#pursue(run, row, upstream, null)))
    }
  }

  /** Hands over lines that wait for batch APIs, as far as the batch APIs have room. */
  submit(runs: Iterable<Run>): void {
    const { clock, atRisk } = this.#options
    const waiting = new Set<Run>()
    for (const run of runs) if (run.mayMove && run.count(UNSUBMITTED) > 0) waiting.add(run)
    while (waiting.size > 0) {
      const now = clock.now()
      let first: HandOver | null = null
      for (const run of waiting) {
        const next = this.#next(run, now)
        if (next === null) waiting.delete(run)
        else if (first === null || isBefore(next, first, atRisk)) first = next
      }
      if (first === null) return
      this.#handOver(first, now)
      if (!first.run.mayMove || first.run.count(UNSUBMITTED) === 0) waiting.delete(first.run)
    }
  }

  /** The next lines of a run to hand over; null if no batch API has room for any. */
  #next(run: Run, now: number): HandOver | null {
    if (now >= run.batch.expires_at) {
      this.#options.turn.push({ kind: 'stopped', run, reason: 'batch_expired' })
      return null
    }
    if (!run.isLate && now >= recallAt(run.batch)) {
      // A batch API would answer them too late, and servers may be there that do not, whether it takes lines now or not.
      run.isLate = true
      for (const position of run.positions(UNSUBMITTED))
        this.#options.lines.place(run, position, 'its batch API would be too late')
    }
    // A batch that is created from now on would be cancelled at once.
    if (now >= lastCallAt(run.batch)) return null
    const parts = this.#parts.get(run)
    const groups = Map.groupBy(
      run.positions(UNSUBMITTED),
      // What a batch is charged to is one day.
      (position) =>
        `${parts?.get(position) ?? 0} ${run.reservedOn(position)} ${run.lines[position]!.model} ${run.lines[position]!.endpoint}`,
    )
    for (const positions of groups.values()) {
      const upstream = this.#choose(run, positions[0]!, now)
      if (!upstream) continue
      const tokens = positions.map((position) => run.lines[position]!.projected.tokens)
      return { run, upstream, positions: positions.slice(0, upstream.fitting(tokens, now)) }
    }
    return null
  }

  /** The batch API of the lowest tier with room, with the fewest lines; for a failed line, an answering one. */
  #choose(run: Run, position: number, now: number): BatchApiUpstream | null {
    const route = this.#options.lanes.get(run.lines[position]!.model ?? '')?.route
    if (!route) return null
    const tries = run.triesOf(position)
    const avoid = tries?.avoid ?? null
    const hasFailed = (tries?.count.failures ?? 0) > 0
    const others = avoid === null || !(avoid instanceof BatchApiUpstream) ? [] : route.besides(avoid)
    const tiers = [...others, route.inUse(now, this.#options.atRisk.has(run.batch.id))]
    for (const ofTier of tiers) {
      let best: BatchApiUpstream | null = null
      for (const one of ofTier) {
        if (!(one instanceof BatchApiUpstream) || one.freePlaces(now) === 0) continue
        if (!one.circuit.closed && !one.circuit.probeDue(now)) continue
        if (best === null || one.tier < best.tier) best = one
        else if (one.tier === best.tier && isPreferred(one, best, hasFailed)) best = one
      }
      if (best) return best
    }
    return null
  }

  #handOver({ run, upstream, positions }: HandOver, now: number): void {
    const { lines } = this.#options
    const taken = positions.filter(
      (position) => run.stateOf(position) === UNSUBMITTED && lines.begin(run, position, now, REMOTE),
    )
    if (taken.length === 0) return
    const call = upstream.callFor(run.batch.id, {}, now)
    upstream.begin(call)
    this.#during(run, () => this.#submit(run, upstream, taken, call))
  }

  async #submit(
    run: Run,
    upstream: BatchApiUpstream,
    positions: readonly number[],
    call: Call,
  ): Promise<void> {
    const { clock } = this.#options
    const arrived = upstream.handOver(run.claim.project_id, positions.length)
    let isThere = false
    try {
      const row = await this.rows.intend(run, upstream, positions)
      if (row !== null) isThere = await this.#pursue(run, row, upstream, call)
    } finally {
      if (call.cohort !== null) upstream.withdraw(call, clock.now())
      arrived(isThere)
    }
  }

  async #collect(run: Run, row: RemoteBatchRow, upstream: BatchApiUpstream): Promise<void> {
    const left = await this.#collector.collect(run, row, upstream, this.#abort.signal)
    if (left?.kind === 'blamed')
      await this.#onBlamed(run, row, left.left, left.blamed, left.result, left.attempt)
    // Results that a worker leaves because it stops are read by the next one.
    if (left?.kind === 'again') this.#lookAgainAt(run, left.at)
    else if (this.#abort.signal.aborted) this.#lookAgainAt(run, this.#options.clock.now())
  }

  async #giveUp(run: Run, row: RemoteBatchRow): Promise<void> {
    const positions = this.rows.positionsOf(run, row)
    if (await this.rows.settle(run, row, 'abandoned'))
      this.rows.place(run, positions, 'its batch API is not configured any more')
    else this.#lookAgainAt(run, this.#options.clock.now() + FAILED_MS)
  }

  /** Creates or finds a batch at the batch API; returns whether it exists. `call`: that of new lines, ended here. */
  async #pursue(
    run: Run,
    row: RemoteBatchRow,
    upstream: BatchApiUpstream,
    call: Call | null,
  ): Promise<boolean> {
    const { clock, random } = this.#options
    const at = clock.now()
    const positions = this.rows.positionsOf(run, row)
    const end = await this.#create(run, row, upstream, call !== null)
    const now = clock.now()
    if (call !== null) {
      if (end.kind === 'open') upstream.took(call, now)
      else if (end.kind === 'returned' && end.blamed === null) upstream.end(call, end.result, now)
      else upstream.withdraw(call, now)
      call.cohort = null
    }
    if (end.kind !== 'returned' && end.kind !== 'unsent') return end.kind === 'open'
    if (!(await this.#settle(run, row, end)) || run.isClosed) return false
    if (end.kind === 'unsent') {
      this.rows.place(run, positions, 'it may not be handed over now')
      return false
    }
    const mayStay = end.left !== 'batch'
    const attempt = { upstream, at, now, draw: random(), mayStay }
    const room = end.isTooMuch ? await this.#collector.offerLess(run, row, positions) : null
    if (room === 'again') return false
    if (room === 'filled' && end.result.kind === 'throttled') end.result.isFilled = true
    if (end.blamed !== null) await this.#onBlamed(run, row, positions, end.blamed, end.result, attempt)
    else {
      const result =
        end.result.kind === 'throttled' ? throttledAgain(end.result, run, positions, now) : end.result
      for (const position of positions)
        this.#collector.end(run, position, result, end.isOwn ? 'line' : 'server', attempt)
    }
    return false
  }

  async #create(
    run: Run,
    row: RemoteBatchRow,
    upstream: BatchApiUpstream,
    isNew: boolean,
  ): Promise<CreationEnd> {
    const { clock } = this.#options
    const positions = this.rows.positionsOf(run, row)
    const until = this.rows.watch(run, row, this.#abort.signal)
    const creation = { run, row, positions, upstream, isNew, until }
    const end = await this.#creations.pursue(creation).finally(() => until.close())
    if (end.kind === 'later')
      this.#lookAgainAt(run, Math.min(end.at, nextMark(row, run.batch, clock.now()) ?? end.at))
    return end
  }

  /** Stores the end of a creation; false if the lease is lost. */
  async #settle(
    run: Run,
    row: RemoteBatchRow,
    end: CreationEnd & { kind: 'returned' | 'unsent' },
  ): Promise<boolean> {
    const left = end.kind === 'unsent' ? 'file' : end.left
    const state = left === 'batch' ? 'abandoned' : left === 'file' ? 'recorded' : 'done'
    const status = end.kind === 'returned' && end.blamed !== null ? REFUSED : undefined
    const isOurs = await this.rows.settle(run, row, state, status)
    if (!isOurs) this.#lookAgainAt(run, this.#options.clock.now() + FAILED_MS)
    return isOurs
  }

  /**
   * Finds out which lines are to blame when a batch API takes none of them, and blames some. Those that it names fail.
   * Where it names none, lines are at fault only if it takes others of the chunk: then they are handed over in two parts,
   * and a line that is refused alone fails. If it takes none, whichever it is offered, it refuses this service, and the
   * lines wait. Once that has taken too many batches, all of them are tried again together, as often as lines that a
   * server leaves without an answer.
   */
  async #onBlamed(
    run: Run,
    row: RemoteBatchRow,
    positions: readonly number[],
    blamed: readonly BlamedLine[] | null,
    result: MissedResult,
    attempt: EndedAttempt,
  ): Promise<void> {
    if (blamed === null) return this.#refuses(run, row, positions, result, attempt)
    const inFile = [...linesOf(row)]
    const named = new Map<number, string>()
    for (const { custom_id, line, message } of blamed) {
      const isNamed = (position: number): boolean =>
        line !== null
          ? run.lines[position]!.line === inFile[line - 1]
          : remoteIdOf(run, position) === custom_id
      const position = positions.find(isNamed)
      if (position !== undefined) named.set(position, message)
    }
    for (const [position, words] of named) this.#reject(run, position, words, result, attempt)
    let rest = positions.filter((position) => run.stateOf(position) === REMOTE)
    if (rest.length === 0) return
    const made = await batchesOfChunk(this.#options.store.read, run.claim)
    if (run.isClosed) return
    if (made.length >= BATCHES_MAX) {
      this.#parts.delete(run)
      for (const position of rest) this.#collector.end(run, position, result, 'line', attempt)
      return
    }
    if (named.size === 0) {
      const others = made.filter(({ id, upstream }) => id !== row.id && upstream === row.upstream)
      const isLater = row.remote_id !== null
      // One that is there may be refused later, as this one was.
      let isTaken = others.some(({ remote_id, status, answered }) =>
        isLater ? answered > 0 || status === 'completed' : remote_id !== null && status !== 'failed',
      )
      if (!isTaken && !isLater && rest.length > 1) {
        isTaken = await this.#takesAny(run, row, rest)
        if (run.isClosed) return
        rest = this.rows.unclaimed(run, rest)
      }
      const refused = others.filter(({ status }) => status === 'failed').length
      if (!isTaken && (!isLater || rest.length === 1 || refused >= REFUSED_LATER_MAX))
        return this.#refuses(run, row, rest, result, attempt)
      if (rest.length === 1)
        return this.#reject(run, rest[0]!, result.words ?? result.reason, result, attempt)
      this.#halve(run, rest)
    }
    this.rows.place(run, rest, 'another line was rejected')
  }

  /** Whether a batch API that refused lines together takes one of them alone; that line is then at the batch API. */
  async #takesAny(run: Run, row: RemoteBatchRow, positions: readonly number[]): Promise<boolean> {
    const upstream = this.rows.upstreamOf(row)
    const at = Array.from({ length: PROBES }, (_, i) => Math.floor(((i + 0.5) / PROBES) * positions.length))
    for (const i of new Set(at)) {
      const position = positions[i]!
      if (!run.mayMove || !upstream || run.stateOf(position) !== REMOTE) return false
      const probe = await this.rows.intend(run, upstream, [position])
      if (probe === null) return false
      const end = await this.#create(run, probe, upstream, true)
      if (end.kind === 'open') return true
      if (end.kind !== 'returned' && end.kind !== 'unsent') return false
      const isRefused = end.kind === 'returned' && end.blamed !== null
      if (!(await this.#settle(run, probe, end)) || !isRefused) return false
    }
    return false
  }

  /** Makes lines wait without blame, since the batch API is unavailable to this service. */
  #refuses(
    run: Run,
    row: RemoteBatchRow,
    positions: readonly number[],
    result: MissedResult,
    attempt: EndedAttempt,
  ): void {
    const { upstream, now } = attempt
    const rejected = result.kind === 'failed' ? { ...result, refusesService: true } : result
    if (upstream instanceof BatchApiUpstream) {
      const call = upstream.callFor(row.batch_id, row, now)
      upstream.begin(call)
      upstream.end(call, rejected, now)
    }
    for (const position of positions) this.#collector.end(run, position, rejected, 'server', attempt)
  }

  #reject(run: Run, position: number, words: string, { status }: MissedResult, attempt: EndedAttempt): void {
    const message = `The batch API rejected the line: "${words}".`
    const refused = {
      ...{ kind: 'refused' as const, status: status ?? 400 },
      ...{ code: 'upstream_rejected' as const, message },
    }
    this.#collector.end(run, position, refused, 'line', attempt)
  }

  #halve(run: Run, positions: readonly number[]): void {
    const parts = this.#parts.get(run) ?? new Map<number, number>()
    this.#parts.set(run, parts)
    const first = this.#nextPart
    this.#nextPart += 2
    for (const [i, position] of positions.entries())
      parts.set(position, i < positions.length / 2 ? first : first + 1)
  }

  /** The time of the run's next claim, when more may be known of its remote batches (Unix ms). */
  lookAt(run: Run): number {
    const now = this.#options.clock.now()
    const at = Math.min(this.#lookAt.get(run) ?? Number.POSITIVE_INFINITY, now + PARK_MS)
    const { expires_at } = run.batch
    return now < expires_at ? Math.min(at, expires_at) : at
  }

  /** Does work on a remote batch; the run is neither parked nor ended before it is done. */
  #during(run: Run, work: () => Promise<void>): void {
    const { turn, log, clock, lines } = this.#options
    run.remoteWork++
    work()
      .catch((error: unknown) => {
        if (error instanceof IllegalTransition) return lines.broken(run, error)
        const { id: batch } = run.batch
        log.error(
          { err: error, batch, chunk: run.claim.idx },
          'work on a remote batch failed; it is tried again',
        )
        this.#lookAgainAt(run, clock.now() + FAILED_MS)
      })
      .finally(() => {
        run.remoteWork--
        turn.touch(run)
      })
  }

  #lookAgainAt(run: Run, at: number): void {
    this.#lookAt.set(run, Math.min(Math.round(at), this.#lookAt.get(run) ?? Number.POSITIVE_INFINITY))
  }
}

function isPreferred(one: BatchApiUpstream, other: BatchApiUpstream, hasFailed: boolean): boolean {
  const [answers, otherAnswers] = [one, other].map(({ circuit }) => circuit.missStreak === null)
  if (hasFailed && answers !== otherAnswers) return answers === true
  return one.linesThere < other.linesThere
}

/** Compares runs: at-risk batches first, then the project with the fewest lines there, then the earliest deadline. */
function isBefore(a: HandOver, b: HandOver, atRisk: ReadonlySet<string>): boolean {
  const risk = Number(atRisk.has(b.run.batch.id)) - Number(atRisk.has(a.run.batch.id))
  if (risk !== 0) return risk < 0
  const lines = a.upstream.linesOf(a.run.claim.project_id) - b.upstream.linesOf(b.run.claim.project_id)
  return lines !== 0 ? lines < 0 : a.run.claim.deadline < b.run.claim.deadline
}
