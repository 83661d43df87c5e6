// What operators do to the upstreams of a run: a second tier, hours that end or begin at a change of daylight saving,
// outages of the lowest tier, and reloads. They draw from a random stream of their own, so that they do not change the
// rest of a run.
import type { Backend, BackendCall } from '../../src/backends/backend.ts'
import type { Spill } from '../../src/dispatch/senders/routes.ts'
import { type HoursWindow, OpeningHours } from '../../src/domain/hours.ts'
import type { Priority } from '../../src/jsonl/request-body.ts'
import { ModelServer, type Upstream } from '../../src/servers/upstream.ts'
import { type Answering, backendOf, UNREACHABLE } from './answering.ts'
import { OWN_PRIORITY } from './input-lines.ts'
import type { Machine } from './machine.ts'
import type { Plans } from './plans.ts'
import { type SeededRandom, seededRandom } from './seeded-random.ts'
import { RISK_MS_MAX } from './spill-rules.ts'
import type { Tally } from './tally.ts'

const DAYS = [1, 2, 3, 4, 5, 6, 7]
const BERLIN = { days: DAYS, timezone: 'Europe/Berlin' }
/** Runs begin so long before their hours change. */
const LEAD_MS = 20_000
const OUTAGE_CHANCE = 0.08
const OUTAGE_END_CHANCE = 0.06
const PLACES = [2, 8, 64]

interface Season {
  hours: HoursWindow[]
  /** When the upstream is closed, from the calendar and not by the code under test (Unix ms). */
  closed: { from: number; to: number }[]
}

/** At 01:00 UTC, 02:00 in Berlin becomes 03:00: what closes at two opens at 03:01, one minute later. */
const SPRING: Season = {
  hours: [
    { ...BERLIN, from: 0, to: 120, concurrency_max: null },
    { ...BERLIN, from: 181, to: 1440, concurrency_max: null },
  ],
  closed: [{ from: Date.UTC(2026, 2, 29, 1), to: Date.UTC(2026, 2, 29, 1, 1) }],
}
/** At 01:00 UTC, 03:00 in Berlin becomes 02:00: the minute after three, which comes once, is at 02:00 UTC. */
const AUTUMN: Season = {
  hours: [{ ...BERLIN, from: 180, to: 181, concurrency_max: 0 }],
  closed: [{ from: Date.UTC(2026, 9, 25, 2), to: Date.UTC(2026, 9, 25, 2, 1) }],
}
/** Open from 20:00 to 07:00 in Berlin, but for a minute after the change: two days with the change between them. */
const OFF_PEAK: Season = {
  hours: [
    { ...BERLIN, from: 1200, to: 1440, concurrency_max: null },
    { ...BERLIN, from: 0, to: 120, concurrency_max: null },
    { ...BERLIN, from: 181, to: 420, concurrency_max: null },
  ],
  closed: [
    { from: Date.UTC(2026, 2, 28, 6), to: Date.UTC(2026, 2, 28, 19) },
    { from: Date.UTC(2026, 2, 29, 1), to: Date.UTC(2026, 2, 29, 1, 1) },
    { from: Date.UTC(2026, 2, 29, 5), to: Date.UTC(2026, 2, 29, 18) },
  ],
}
/** When something opens or closes in them, and an hour in which nothing does. */
export const VISITS = [
  Date.UTC(2026, 2, 28, 12),
  Date.UTC(2026, 2, 28, 19),
  Date.UTC(2026, 2, 29, 1),
  Date.UTC(2026, 2, 29, 5),
  Date.UTC(2026, 2, 29, 18),
].map((at) => at - LEAD_MS)

export interface UpstreamChangesOptions {
  seed: number
  /** The run lasts a day, with opening hours. */
  isDay: boolean
  /** The run tests something that a second server or another start would disturb. */
  fixed: boolean
  violate: (violation: string) => void
  plans: Plans
  tally: Tally
}

export interface ServersOf {
  machine: Machine
  before: Upstream | null
  /** Makes a client of the model server, or of an engine before it. */
  lowest: (server: Answering, name: string) => Backend
  server: () => Answering
  concurrency_max: () => number
}

/** The time that is left at the end of each class of a deadline but the last one. */
const CLASS_ENDS_MS = [10 * 60_000, ...[1, 4, 12, 24].map((hours) => hours * 3_600_000)]

/** What an upstream sets in each body. */
interface SetFields {
  priority: Priority | null
  service_tier: string | null
}

/** When the lowest tier last answered a machine: by its clock, which may be set, and by the one that may not. */
interface Answered {
  at: number
  steadyAt: number
}

export class UpstreamChanges {
  readonly #random: SeededRandom
  readonly #isOn: boolean
  readonly #season: Season | null
  readonly #options: UpstreamChangesOptions
  readonly #hasTiers: boolean
  readonly #spill: Spill
  /** What the lowest tier sets in each body. */
  readonly #fields: SetFields
  #isDown = false

  constructor(options: UpstreamChangesOptions) {
    const { seed, fixed, isDay } = options
    this.#options = options
    this.#random = seededRandom(seed + 0x71e5)
    const random = this.#random
    this.#isOn = isDay || (random.chance(0.5) && !fixed)
    this.#hasTiers = this.#isOn && random.chance(0.7)
    if (isDay) this.#season = OFF_PEAK
    else this.#season = this.#isOn && random.chance(0.5) ? random.pick([SPRING, AUTUMN]) : null
    // A batch whose window closes before the server opens is at risk all day.
    const whenAtRisk = seededRandom(seed + 0xa71).chance(0.5) && !isDay
    this.#spill = { whenDownMs: random.pick([300, 1_000, 3_000, null]), whenAtRisk }
    this.#isDown = this.#hasTiers && random.chance(0.3)
    const fields = seededRandom(seed + 0xf1e1d)
    this.#fields = {
      priority: fields.pick([null, null, 7, 'deadline', 'deadline-higher-first']),
      service_tier: fields.pick([null, null, 'flex']),
    }
  }

  /** When the run begins; null: at any time. */
  get start(): number | null {
    if (this.#season === OFF_PEAK) return VISITS[0]!
    return this.#season && this.#season.closed[0]!.from - LEAD_MS
  }

  get spill(): Spill {
    return this.#spill
  }

  /** Starts or ends an outage of the lowest tier; says so if it does. */
  step(): string | null {
    if (!this.#hasTiers || !this.#random.chance(this.#isDown ? OUTAGE_END_CHANCE : OUTAGE_CHANCE)) return null
    this.#isDown = !this.#isDown
    return this.#isDown ? 'the lowest tier is down' : 'the lowest tier is up'
  }

  endOutage(): void {
    this.#isDown = false
  }

  /** Which of `count` batches is paused or resumed now; null: none. */
  pauses(count: number): number | null {
    return this.#isOn && this.#random.chance(0.04) ? this.#random.int(0, count - 1) : null
  }

  /** Whether a machine reloads now. */
  get reloads(): boolean {
    return this.#isOn && this.#random.chance(0.04)
  }

  /** What a configuration says just now. */
  upstreams({ machine, before, lowest, server, concurrency_max }: ServersOf): ModelServer[] {
    const random = this.#random
    const answered: Answered = { at: Number.NEGATIVE_INFINITY, steadyAt: Number.NEGATIVE_INFINITY }
    const first = new ModelServer({
      backend: lowest(this.#watched(server(), machine, answered), 'model-server'),
      concurrency_max: concurrency_max(),
      modelAlias: null,
      before,
      hours: this.#season && new OpeningHours(this.#season.hours),
      ...this.#fields,
    })
    if (!this.#hasTiers) return [first]
    const second = new ModelServer({
      backend: backendOf('hosted', this.#hosted(server(), machine, first, answered)),
      concurrency_max: random.pick(PLACES),
      modelAlias: null,
      tier: 1,
      priority: 'deadline',
    })
    return [first, second]
  }

  /** What an upstream sets takes the place of what a line says, and nothing else changes. */
  #checkFields(call: BackendCall, { priority, service_tier }: SetFields, at: number): void {
    const sent = JSON.parse(Buffer.from(call.body).toString())
    const { violate, plans } = this.#options
    const request = plans.requestOf(call)
    const leftMs = plans.deadlineOf(request) - at
    const inOrder = 1 + CLASS_ENDS_MS.filter((ms) => ms < leftMs).length
    const wanted =
      priority === 'deadline' ? inOrder : priority === 'deadline-higher-first' ? -inOrder : priority
    const isOwn = priority === null && (sent.priority ?? OWN_PRIORITY) === OWN_PRIORITY
    if (!isOwn && sent.priority !== wanted)
      violate(`${request} was sent with the priority ${sent.priority} and not ${wanted}`)
    if ((sent.service_tier ?? null) !== service_tier)
      violate(`${request} was sent with the service_tier ${sent.service_tier} and not ${service_tier}`)
  }

  #watched(server: Answering, { name, clock }: Machine, answered: Answered): Answering {
    return async (call) => {
      const closed = this.#season?.closed ?? []
      const at = clock.now()
      for (const { from, to } of closed)
        if (at >= from && at < to)
          this.#options.violate(`${name} sent a line ${at - from} ms after the server closed`)
      const before = closed.filter(({ to }) => to <= at).length
      if (this.#season) this.#options.tally.count(`hours: sent after ${before} closures`)
      this.#checkFields(call, this.#fields, at)
      if (this.#isDown) return UNREACHABLE
      const result = await server(call)
      if (result.kind === 'answered' || result.kind === 'refused') {
        answered.at = clock.now()
        answered.steadyAt = clock.steady()
      }
      return result
    }
  }

  #hosted(server: Answering, { name, clock }: Machine, first: ModelServer, answered: Answered): Answering {
    return async (call) => {
      const at = clock.now()
      const { whenDownMs, whenAtRisk } = this.#spill
      const { violate, tally, plans } = this.#options
      this.#checkFields(call, { priority: 'deadline', service_tier: null }, at)
      const upMs = Math.max(at - answered.at, clock.steady() - answered.steadyAt)
      const request = plans.requestOf(call)
      if (whenDownMs !== null && upMs >= whenDownMs) tally.count('tiers: spilled while down')
      else if (!whenAtRisk || plans.deadlineOf(request) - at > RISK_MS_MAX)
        violate(`${name} sent ${request} to the second tier ${upMs} ms after the first had answered`)
      else if (first.accepts(at))
        violate(`${name} sent ${request}, at risk, to the second tier while the first had a place`)
      else tally.count('tiers: spilled at risk')
      return await server(call)
    }
  }
}
