// A model server with live traffic, which several upstreams of this worker may share: `LiveServer` counts their lines in
// flight together, and bounds them by the live share; `LiveTraffic` reads the metrics of all of them.
import type { Backend, ServerTraffic } from '../../backends/backend.ts'
import type { Clock } from '../../domain/clock.ts'
import type { WorkerReport } from '../../store/workers.ts'
import { LiveShare, type LiveTerms } from './live-share.ts'

/** The interval of readings while no line is to be sent; they show the usual traffic. */
const IDLE_READ_MS = 3_000
/** The interval of readings while lines wait or are in flight. */
const READ_MS = 500
/** The time without a slot after which lines are no longer kept ready for the server. */
const TAKEN_MS = 5_000
/** The number of counts of lines in flight that are kept until a reading of their time arrives. */
const SENT_MAX = 256

/** The lines that other workers have in flight at the server. */
interface OtherWorkers {
  inFlight: number
  /** The number of these workers. */
  workers: number
}

export class LiveServer {
  readonly share: LiveShare
  readonly #check = new TrafficCheck()
  #inFlight = 0
  #readAt = Number.NEGATIVE_INFINITY
  #reading = false
  /** The time since which there has been no slot for a line. */
  #fullSince: number | null = null
  /** The number of times that a reading left room for fewer lines than were in flight. */
  backOffs = 0
  #isOver = false
  /** The traffic as it was read last; null while the server says nothing. */
  traffic: ServerTraffic | null = null
  /** Lines in flight at each reading since the time of the last metrics. */
  #sent: { at: number; inFlight: number; others: number }[] = []

  constructor(terms: LiveTerms) {
    this.share = new LiveShare(terms)
  }

  begin(): void {
    this.#inFlight++
  }

  /** Ends a line. `tokens`: those of its answer; null without an answer. */
  end(tookMs: number, tokens: number | null): void {
    this.#inFlight--
    if (tokens !== null) this.share.answered(tookMs, tokens)
  }

  /** The number of readings with impossible values, or with values that the next reading did not confirm. */
  get rejected(): number {
    return this.#check.rejected
  }

  get inFlight(): number {
    return this.#inFlight
  }

  /** The number of lines in flight that an upstream with `mine` lines now may have. */
  places(mine: number, now: number): number {
    return Math.max(0, this.share.places(now) - (this.#inFlight - mine))
  }

  /** The time since which live traffic has taken the whole server, if that lasts for a while (Unix ms); else null. */
  takenSince(now: number): number | null {
    return this.#fullSince !== null && now - this.#fullSince >= TAKEN_MS ? this.#fullSince : null
  }

  isDue(now: number, isWanted: boolean): boolean {
    // A Prometheus reads the server more rarely than it is read itself.
    const everyMs = isWanted && this.traffic?.at === undefined ? READ_MS : IDLE_READ_MS
    return !this.#reading && now - this.#readAt >= everyMs - READ_MS / 5
  }

  /** Reads the server's traffic and sets the share. `others` is read before, so that the traffic is the latest. */
  async read(
    readTraffic: (() => Promise<ServerTraffic | null>) | undefined,
    others: OtherWorkers,
    now: () => number,
  ): Promise<void> {
    this.#readAt = now()
    this.#reading = true
    let read: ServerTraffic | null
    try {
      read = (await readTraffic?.()) ?? null
    } finally {
      this.#reading = false
    }
    if (read?.at === undefined || read.at !== this.traffic?.at) this.#apply(read, others, now())
    const sent = { at: now(), inFlight: this.#inFlight, others: others.inFlight }
    this.#sent = [...this.#sent.slice(1 - SENT_MAX), sent]
    const isOver = this.share.current < this.#inFlight
    if (isOver && !this.#isOver) this.backOffs++
    this.#isOver = isOver
    this.#fullSince = this.share.current > 0 ? null : (this.#fullSince ?? now())
  }

  #apply(read: ServerTraffic | null, others: OtherWorkers, now: number): void {
    const own = { inFlight: this.#inFlight, others: others.inFlight, workers: 1 + others.workers }
    const { at = now } = read ?? {}
    this.#sent = this.#sent.slice(
      Math.max(
        0,
        this.#sent.findLastIndex((one) => one.at <= at),
      ),
    )
    const then = at < now ? (this.#sent[0] ?? own) : own
    const { traffic, isConfirmed } = this.#check.check(read, then.inFlight + then.others, at)
    this.traffic = traffic
    if (traffic) this.share.read(traffic, own, now, isConfirmed, then)
    else this.share.unread(own, now)
  }
}

// Keeps what no server can have out of what is learned of a server. Numbers of a metrics page that are impossible are dropped:
// without the requests nothing is left of a reading. A number of requests that is possible and out of all proportion is
// obeyed at once, and learned when it has lasted: what is learned of a server stays for hours, and errors are short.

/** The most running and waiting requests that a server can have; higher numbers are wrong. */
const RUNNING_MAX = 16_384
const WAITING_MAX = 1_000_000
/** The highest share of a cache in use; some servers round it up. */
const CACHE_MAX = 1.01
const TOKENS_MAX = Number.MAX_SAFE_INTEGER
/** The most tokens that a server makes at once, and per millisecond since the last reading. */
const TOKENS_AT_ONCE_MAX = 100_000
const TOKENS_PER_MS_MAX = 10_000
/** The number of live requests out of proportion: this multiple of the recent highest number, and so many more. */
const BURST_FACTOR = 8
const BURST_MORE = 256
/** The time after which the highest number of other requests counts half. */
const HIGHEST_HALF_LIFE_MS = 6 * 3_600_000
/** The time after which a reading that repeats is believed. */
const CONFIRMED_MS = 60_000

interface CheckedTraffic {
  /** The usable part of the reading; null where nothing is usable. */
  traffic: ServerTraffic | null
  /** Whether the reading may be learned. */
  isConfirmed: boolean
}

class TrafficCheck {
  /** The number of readings of which a part was dropped or was not learned. */
  rejected = 0
  readonly #tokens = new CounterCheck()
  readonly #steps = new CounterCheck()
  /** The highest number of other requests seen, and its time. */
  #highest: { others: number; at: number } | null = null
  #burstSince: number | null = null

  /** Checks a reading. `ours`: lines in flight at the server, of all workers. */
  check(read: ServerTraffic | null, ours: number, now: number): CheckedTraffic {
    if (read === null) return { traffic: null, isConfirmed: false }
    const { running, waiting, deferred = 0, at } = read
    if (!isWithin(running, RUNNING_MAX) || !isWithin(waiting, WAITING_MAX)) {
      this.rejected++
      return { traffic: null, isConfirmed: false }
    }
    const cache = read.cache !== null && isWithin(read.cache, CACHE_MAX) ? Math.min(1, read.cache) : null
    const tokens = this.#tokens.isPossible(read.tokens, now) ? read.tokens : null
    const steps = this.#steps.isPossible(read.steps, now) ? read.steps : null
    const isConfirmed = this.#isConfirmed(Math.max(0, running + waiting + deferred - ours), now)
    const isWhole = (cache !== null || read.cache === null) && tokens === read.tokens && steps === read.steps
    if (!isWhole || !isConfirmed) this.rejected++
    return {
      traffic: {
        ...{ running, waiting, ...(deferred > 0 && { deferred }), cache, tokens, steps },
        ...(at !== undefined && { at }),
      },
      isConfirmed,
    }
  }

  #isConfirmed(others: number, now: number): boolean {
    const { others: highest, at } = this.#highest ?? { others, at: now }
    if (others > BURST_FACTOR * highest + BURST_MORE) {
      this.#burstSince ??= now
      if (now - this.#burstSince < CONFIRMED_MS) return false
    }
    this.#burstSince = null
    const left = highest * 2 ** ((at - now) / HIGHEST_HALF_LIFE_MS)
    this.#highest = { others: Math.max(others, left), at: now }
    return true
  }
}

/** Checks a counter of tokens, or of steps, which are fewer. The counter restarts with its server. */
class CounterCheck {
  /** The counters as they were read last. */
  #last: { count: number; at: number } | null = null

  isPossible(count: number | null, now: number): boolean {
    const last = this.#last
    this.#last = count === null || !isWithin(count, TOKENS_MAX) ? null : { count, at: now }
    if (this.#last === null || last === null) return this.#last !== null
    const most = TOKENS_AT_ONCE_MAX + TOKENS_PER_MS_MAX * Math.max(0, now - last.at)
    return this.#last.count - last.count <= most
  }
}

function isWithin(value: number, most: number): boolean {
  return value >= 0 && value <= most
}

// `LiveTraffic` reads the metrics of model servers with live traffic, from which their live shares follow, and of others while
// they may have room for more lines. Every worker does so; the reports of the other workers say which requests are theirs.

/** The greatest age in ms of the other workers' reports. */
const REPORTS_MS = 2_000

interface LiveTrafficOptions {
  clock: Clock
  lanes: ReadonlyMap<string, { waiting: number; route: { servers: readonly TrafficServer[] } }>
  /** The reports of the other workers. */
  reports: () => Promise<WorkerReport[]>
}

/** A model server, perhaps one with live traffic. */
interface TrafficServer {
  readonly name: string
  readonly live: LiveServer | null
  readonly backend: Pick<Backend, 'readTraffic'>
  /** Looks for room for more lines at a server without live traffic. */
  seekRoom(now: () => number): Promise<boolean>
}

interface Place {
  model: string
  upstream: TrafficServer
}

export class LiveTraffic {
  readonly #options: LiveTrafficOptions
  #reports: WorkerReport[] = []
  #reportsAt = Number.NEGATIVE_INFINITY

  constructor(options: LiveTrafficOptions) {
    this.#options = options
  }

  /**
   * Reads servers that are due; to be called a few times a second, since shares rise between the readings. Returns whether
   * more lines may go than before.
   */
  async tick(): Promise<boolean> {
    const { clock, lanes } = this.#options
    const servers = Map.groupBy(this.#places(), ({ upstream }) => upstream.live!)
    const now = clock.now()
    const seeking = [...lanes.values()].flatMap(({ waiting, route }) => {
      const others = waiting === 0 ? [] : route.servers.filter(({ live }) => live === null)
      return others.map((server) => server.seekRoom(() => clock.now()))
    })
    const isWanted = (places: readonly Place[]): boolean =>
      places.some(({ model }) => (lanes.get(model)?.waiting ?? 0) > 0)
    const due = [...servers].filter(([server, places]) =>
      server.isDue(now, server.inFlight > 0 || isWanted(places)),
    )
    if (due.length > 0) await this.#refreshReports(now)
    await Promise.all(
      due.map(([server, places]) => {
        const { backend } = places[0]!.upstream
        const others = this.#othersAt(places)
        return server.read(backend.readTraffic?.bind(backend), others, () => clock.now())
      }),
    )
    const found = await Promise.all(seeking)
    return servers.size > 0 || found.includes(true)
  }

  #places(): Place[] {
    return [...this.#options.lanes].flatMap(([model, { route }]) =>
      route.servers.filter(({ live }) => live !== null).map((upstream) => ({ model, upstream })),
    )
  }

  async #refreshReports(now: number): Promise<void> {
    if (now - this.#reportsAt < REPORTS_MS) return
    this.#reportsAt = now
    this.#reports = await this.#options.reports()
  }

  #othersAt(places: readonly Place[]): OtherWorkers {
    const inFlight = this.#reports.map(({ upstreams }) =>
      upstreams
        .filter((one) => places.some((at) => at.model === one.model && at.upstream.name === one.upstream))
        .reduce((sum, one) => sum + one.in_flight, 0),
    )
    return {
      inFlight: inFlight.reduce((sum, count) => sum + count, 0),
      workers: inFlight.filter((count) => count > 0).length,
    }
  }
}
