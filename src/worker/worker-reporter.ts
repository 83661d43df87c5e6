// Writes the reports of a worker to the database: the state of the worker and its model servers for GET /v1/status, and
// the models that it cannot reach for waiting reasons. Only changes are written, so an idle or healthy service writes
// nothing.
import type { ServerProbe } from '../backends/backend.ts'
import { reasonForCaller, reasonForOperator } from '../backends/failure-reason.ts'
import type { Lane } from '../dispatch/senders/lane.ts'
import { type Clock, unixSeconds } from '../domain/clock.ts'
import { DAY_MS, startOfHour } from '../domain/days.ts'
import type { Circuit } from '../servers/circuit.ts'
import type { LiveServer } from '../servers/live/live-server.ts'
import { ModelServer, type Observer, type Upstream } from '../servers/upstream.ts'
import type { ServerHourRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import {
  addServerHours,
  type LaneReport,
  setLaneReports,
  setWorkerReport,
  type UpstreamErrors,
  type WorkerReport,
} from '../store/workers.ts'
import type { UpstreamStatus } from '../wire/status.ts'

/** The interval in ms at which a server without lines is asked whether it is up. */
const PROBE_MS = 30_000
/** The longest part of a server's message that is kept, in characters. */
const ERROR_LENGTH_MAX = 300

interface WorkerReporterOptions {
  store: Pick<Store, 'write' | 'writeAsyncCommit'>
  clock: Clock
  session: { readonly id: string }
  lanes: ReadonlyMap<string, ReportedLane & Pick<Lane, 'upstreams'>>
  status: () => { openChunks: number; storesFailing: boolean }
  onlyBatches?: ReadonlySet<string> | undefined
}

/** Attempts at an upstream since the last report. */
type Attempts = Pick<ServerHourRow, 'answered' | 'answered_ms' | 'missed' | 'missed_ms'>

type Probed = ServerProbe & { at: number }

export class WorkerReporter {
  readonly #options: WorkerReporterOptions
  #attempts = new Map<Upstream, Attempts>()
  /** The last known state of each server, up or not, and its time (Unix ms). */
  readonly #probes = new WeakMap<Upstream, Probed>()
  readonly #liveHours = new LiveHours()
  #since: number
  #reported = ''
  #storesFailing = false
  readonly #laneStates = new Map<string, Pick<LaneReport, 'state' | 'since'>>()
  /** The lanes as stored last, and the session that they were stored under. */
  #lanesReported: { worker_id: string; text: string } = { worker_id: '', text: '[]' }

  constructor(options: WorkerReporterOptions) {
    this.#options = options
    this.#since = options.clock.now()
  }

  attempted: Observer['attempted'] = (upstream, result, durationMs) => {
    let attempts = this.#attempts.get(upstream)
    if (!attempts) {
      attempts = { ...NO_ATTEMPTS }
      this.#attempts.set(upstream, attempts)
    }
    if (result === 'answered' || result === 'refused') {
      attempts.answered++
      attempts.answered_ms += Math.round(durationMs)
    } else if (result !== 'aborted') {
      attempts.missed++
      attempts.missed_ms += Math.round(durationMs)
    }
  }

  /** Whether the stores have begun or ceased to fail since the last report. */
  get isOverdue(): boolean {
    return this.#options.status().storesFailing !== this.#storesFailing
  }

  /** Stores the report if it has changed; to be called every few seconds. */
  async report(): Promise<void> {
    const { store, clock, session } = this.#options
    const now = clock.now()
    const report = this.#report(now, Math.max(1, now - this.#since) / 1000)
    const hours = this.#hours(now)
    this.#attempts = new Map()
    this.#since = now
    const worker_id = session.id
    const text = `${worker_id} ${JSON.stringify(report)}`
    if (text === this.#reported && hours.length === 0) return
    await store.writeAsyncCommit(async (tx) => {
      await setWorkerReport(tx, worker_id, report, now)
      await addServerHours(tx, hours, now)
    })
    this.#reported = text
    this.#storesFailing = report.stores_failing
  }

  #hours(now: number): ServerHourRow[] {
    return [...this.#options.lanes].flatMap(([model, { upstreams }]) =>
      upstreams.flatMap((upstream) => {
        const attempts = this.#attempts.get(upstream)
        return attempts ? { model, upstream: upstream.name, hour: startOfHour(now), ...attempts } : []
      }),
    )
  }

  #report(now: number, seconds: number): WorkerReport {
    const { lanes, status, onlyBatches } = this.#options
    const { openChunks, storesFailing } = status()
    const upstreams = [...lanes].flatMap(([model, lane]) =>
      lane.upstreams.map((upstream) => this.#upstream(model, upstream, now, seconds)),
    )
    const inUse = [...lanes.values()].flatMap((lane) => lane.upstreams)
    const live_hours = this.#liveHours.add(inUse, now)
    return {
      ...{ open_chunks: openChunks, stores_failing: storesFailing, upstreams },
      ...(live_hours.length > 0 && { live_hours }),
      ...(onlyBatches && { only_batches: [...onlyBatches] }),
    }
  }

  #upstream(model: string, upstream: Upstream, now: number, seconds: number): UpstreamStatus {
    const { limit, circuit, name } = upstream
    const live = upstream instanceof ModelServer ? upstream.live : null
    const opening = upstream.openingAt(now)
    const error = [...circuit.errors.values()].at(-1)
    const attempts = this.#attempts.get(upstream) ?? NO_ATTEMPTS
    const { answered, missed, answered_ms } = attempts
    const { isUp, reason } = this.#probed(upstream, attempts, now)
    return {
      model,
      upstream: name,
      in_flight: limit.inFlight,
      concurrency: limit.limit,
      concurrency_max: limit.max,
      circuit: circuit.open ? 'open' : 'closed',
      lines_per_s: rounded(answered / seconds),
      latency_ms: answered === 0 ? null : rounded(answered_ms / answered),
      errors_per_s: rounded(missed / seconds),
      tier: upstream.tier,
      hours: opening && { ...opening, until: opening.until === null ? null : unixSeconds(opening.until) },
      reachable: isUp,
      last_error: (reason ?? (error ? reasonForOperator(error) : null))?.slice(0, ERROR_LENGTH_MAX) ?? null,
      ...(live && { live: liveReport(live) }),
    }
  }

  /** Whether a server is up, as lines have shown, or without lines by its last answer to a probe. */
  #probed(upstream: Upstream, { answered, missed }: Attempts, now: number): Probed {
    const last = this.#probes.get(upstream) ?? NOT_PROBED
    const know = (isUp: boolean | null, reason: string | null): Probed => {
      const known = { isUp, reason, at: now }
      this.#probes.set(upstream, known)
      return known
    }
    if (answered > 0) return know(true, null)
    if (missed > 0) return know(null, null)
    const isIdle = upstream.limit.inFlight === 0 && upstream.placesAllowed(now) > 0
    if (isIdle && upstream instanceof ModelServer && now - last.at >= PROBE_MS) {
      const asked = know(last.isUp, last.reason)
      // Told with the next report: a server that does not answer must not delay those of others.
      void upstream.backend.probe?.().then(({ isUp, reason }) => {
        if (this.#probes.get(upstream) === asked) know(isUp, reason)
      })
    }
    return last
  }

  /** Stores the unavailable models, and the batches on whose lines servers fail; to be called about once a second. */
  async reportLanes(): Promise<void> {
    const { store, session } = this.#options
    const laneReports = this.#laneReports()
    const now = { worker_id: session.id, text: JSON.stringify(laneReports) }
    // The reports of an expired session were deleted with it.
    const known = this.#lanesReported.worker_id === now.worker_id ? this.#lanesReported.text : '[]'
    if (known === now.text) return
    await store.write((tx) => setLaneReports(tx, now.worker_id, laneReports))
    this.#lanesReported = now
  }

  /** The models of which no server has been reachable for this long, as last reported. */
  unavailableFor(ms: number): string[] {
    const before = this.#options.clock.now() - ms
    return [...this.#laneStates]
      .filter(([, { state, since }]) => state === 'unavailable' && since <= before)
      .map(([model]) => model)
  }

  #laneReports(): LaneReport[] {
    const { clock, lanes } = this.#options
    const now = clock.now()
    const laneReports: LaneReport[] = []
    for (const [model, lane] of lanes) {
      const state = stateOf(lane, now)
      const before = this.#laneStates.get(model)
      if (state === null) {
        this.#laneStates.delete(model)
        continue
      }
      const since = before?.state === state ? before.since : (sinceOf(lane, state, now) ?? now)
      this.#laneStates.set(model, { state, since })
      laneReports.push({ model, state, since, ...detailsOf(lane, state) })
    }
    return laneReports
  }
}

function liveReport({ share, traffic }: LiveServer): NonNullable<UpstreamStatus['live']> {
  const { running = null, waiting = null, cache = null } = traffic ?? {}
  return { share: share.current, running, waiting, cache: cache === null ? null : rounded(cache) }
}

/** The room that live traffic left for lines on its servers: the mean of each hour of the last day. */
class LiveHours {
  #hours: { at: number; sum: number; readings: number }[] = []

  add(upstreams: readonly Upstream[], now: number): NonNullable<WorkerReport['live_hours']> {
    const at = startOfHour(now)
    for (const server of new Set(upstreams.map((one) => (one instanceof ModelServer ? one.live : null)))) {
      const left = server?.share.partForLines ?? null
      if (left === null) continue
      if (this.#hours.at(-1)?.at !== at) this.#hours.push({ at, sum: 0, readings: 0 })
      const hour = this.#hours.at(-1)!
      hour.sum += left
      hour.readings++
    }
    this.#hours = this.#hours.filter((hour) => hour.at > now - DAY_MS)
    return this.#hours.map(({ at, sum, readings }) => [at, rounded(sum / readings)])
  }
}

const NO_ATTEMPTS: Attempts = { answered: 0, answered_ms: 0, missed: 0, missed_ms: 0 }
const NOT_PROBED: Probed = { isUp: null, reason: null, at: Number.NEGATIVE_INFINITY }

function rounded(value: number): number {
  return Math.round(value * 100) / 100
}

// The states of lanes: which models are unavailable to this worker, and on which batches' lines servers fail.

/** The time in ms of misses after which a server counts as unreachable. */
const OLD_MS = 1_000

type ReportedLane = Pick<Lane, 'inUse' | 'waiting' | 'inFlight'>

function stateOf(
  { inUse: upstreams, waiting, inFlight }: ReportedLane,
  now: number,
): LaneReport['state'] | null {
  if (waiting + inFlight > 0 && startingReason(upstreams)) return 'starting'
  const isAll = (test: (circuit: Circuit) => boolean): boolean =>
    upstreams.length > 0 && upstreams.every(({ circuit }) => test(circuit))
  if (isAll(({ open, missStreak }) => isGone(missStreak) && (open || isOld(missStreak.since, now))))
    return 'unavailable'
  // Reported without lines too: none are claimed meanwhile.
  if (takenSince(upstreams, now) !== null) return 'live_traffic'
  // Without lines to send there is nothing to report.
  if (waiting + inFlight === 0) return null
  if (isAll(({ openKind }) => openKind === 'throttled')) return 'throttled'
  if (isAll(({ closed }) => !closed)) return 'failing'
  return upstreams.some(({ circuit }) => circuit.errors.size > 0) ? 'failing' : null
}

function isGone(streak: Circuit['missStreak']): streak is NonNullable<typeof streak> {
  return streak?.last === 'unreachable' || streak?.last === 'unavailable'
}

/** The reason for which a lane waits if all of its servers are started on demand, and none is up. */
function startingReason(upstreams: ReportedLane['inUse']): { since: number; text: string } | null {
  const reasons = upstreams.map(({ onDemand }) => onDemand?.waitingReason ?? null)
  return reasons.includes(null) ? null : (reasons[0] ?? null)
}

/** The time since which live traffic has taken every server of the lane (Unix ms); null if one has room. */
function takenSince(upstreams: ReportedLane['inUse'], now: number): number | null {
  const since = upstreams.map((upstream) => upstream.takenSince(now))
  return since.length === 0 || since.includes(null) ? null : Math.max(...since.map((at) => at ?? 0))
}

/** Whether misses have lasted long enough to be reported: after a single miss, the next attempt may be answered. */
function isOld(since: number, now: number): boolean {
  return now - since >= OLD_MS
}

/** The time since which none of the lane's servers has answered, or had room (Unix ms); null if one does. */
function sinceOf({ inUse: upstreams }: ReportedLane, state: LaneReport['state'], now: number): number | null {
  if (state === 'starting') return startingReason(upstreams)?.since ?? null
  if (state === 'live_traffic') return takenSince(upstreams, now)
  const since = upstreams.map(({ circuit }) => circuit.missStreak?.since ?? null)
  return since.includes(null) ? null : Math.max(...since.map((at) => at ?? 0))
}

function detailsOf({ inUse: upstreams }: ReportedLane, state: LaneReport['state']): UpstreamErrors {
  const isOpen = upstreams.every(({ circuit }) => !circuit.closed)
  const errors = upstreams.flatMap(({ circuit }) => [...circuit.errors])
  const [, last] = errors.at(-1) ?? []
  const reason = state === 'starting' ? startingReason(upstreams)?.text : last?.reason
  return {
    reason: state === 'starting' || state === 'unavailable' ? (reason ?? null) : null,
    batches: Object.fromEntries(errors.map(([id, error]) => [id, clipped(reasonForCaller(error))])),
    last_error: last === undefined ? null : clipped(reasonForOperator(last)),
    isOpen: isOpen || state === 'starting',
  }
}

function clipped(error: string): string {
  return error.length <= ERROR_LENGTH_MAX ? error : `${error.slice(0, ERROR_LENGTH_MAX - 1)}…`
}
