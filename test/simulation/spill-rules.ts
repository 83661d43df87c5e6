// Whether a request may go to a server of a higher tier, judged by what servers have answered and not by the code under
// test: all servers of lower tiers have answered nothing for the spill delay, its batch is at risk, or a batch API has left
// it, each where the model's policy allows it. A request to a batch API is on its way for some time, maybe by way of
// another machine, so it may go where it might have gone shortly before.
import type { Spill } from '../../src/dispatch/senders/routes.ts'
import type { Clock } from '../../src/domain/clock.ts'
import type { Machine } from './machine.ts'
import type { Plans } from './plans.ts'
import type { Tally } from './tally.ts'

/** No batch whose window closes later than that is at risk: a run is shorter. */
export const RISK_MS_MAX = 3_600_000
/**
 * The last tenth of the longest window: servers that answer at once get what a batch API may answer too late, where lines
 * of batches at risk may spill.
 */
const RECALL_MS_MAX = 8_640_000
/** From the choice of a batch API to its call, with stores that stall and machines that take over. */
const ON_THE_WAY_MS = 15_000

export interface SpillRulesOptions {
  spill: Spill
  /** By server; a server that is not configured just now has none. */
  tierOf: (machine: Machine, server: string) => number | undefined
  servers: readonly string[]
  /** Whether every machine has taken up the last change of tiers. */
  isSettled: () => boolean
  clock: Clock
  plans: Plans
  violate: (violation: string) => void
  tally: Tally
}

export class SpillRules {
  readonly #options: SpillRulesOptions
  /** By machine and server, when it answered, by the clock of the simulation. */
  readonly #answers = new Map<string, number[]>()
  /** Requests that a machine has tried to upload to a batch API. */
  readonly #offered = new Set<string>()
  readonly #machines = new Set<string>()

  constructor(options: SpillRulesOptions) {
    this.#options = options
  }

  answered(machine: Machine, server: string): void {
    const key = `${machine.name} ${server}`
    const times = this.#answers.get(key) ?? []
    times.push(this.#options.clock.now())
    this.#answers.set(key, times)
  }

  /** A machine sends a request to a model server. */
  onSent(machine: Machine, server: string, request: string): void {
    this.#machines.add(machine.name)
    this.#check(machine, server, request, [machine.name], 0, RECALL_MS_MAX)
  }

  /** A machine uploads requests to a batch API. */
  onOffered(machine: Machine, server: string, requests: readonly string[]): void {
    this.#machines.add(machine.name)
    if (this.#options.isSettled())
      for (const request of requests)
        this.#check(machine, server, request, [...this.#machines], ON_THE_WAY_MS, RISK_MS_MAX)
    for (const request of requests) this.#offered.add(request)
  }

  #check(
    machine: Machine,
    server: string,
    request: string,
    machines: readonly string[],
    slackMs: number,
    leftMsMax: number,
  ): void {
    const { spill, servers, tierOf, plans, clock, violate, tally } = this.#options
    const own = tierOf(machine, server)
    const lower = servers.filter((one) => {
      const tier = tierOf(machine, one)
      return tier !== undefined && own !== undefined && tier < own
    })
    if (lower.length === 0) return
    const { whenDownMs, whenAtRisk } = spill
    const isDown = (on: string): boolean =>
      lower.every((one) => this.#hasGap(`${on} ${one}`, whenDownMs ?? 0, slackMs))
    if (whenDownMs !== null && machines.some(isDown)) tally.count('spill: while lower tiers were down')
    else if (whenAtRisk && plans.deadlineOf(request) - clock.now() <= leftMsMax) tally.count('spill: at risk')
    else if ((whenDownMs !== null || whenAtRisk) && this.#offered.has(request))
      tally.count('spill: left by a batch API')
    else violate(`${machine.name} sent ${request} past ${lower.join(' and ')} to ${server}`)
  }

  /** Whether nothing was answered for so long, now or at most `slackMs` ago. */
  #hasGap(key: string, ms: number, slackMs: number): boolean {
    const now = this.#options.clock.now()
    const times = this.#answers.get(key) ?? []
    let before = Number.NEGATIVE_INFINITY
    for (const at of [...times, now]) {
      if (at - before >= ms && at >= now - slackMs) return true
      before = at
    }
    return false
  }
}
