// The funds that this worker has reserved and not used yet. A reservation is an estimate. When a finished line cost
// more than its reservation, the excess is deducted at once from the reservations of unsent lines, before a commit
// tells the database. A line that the remaining funds do not cover is not sent; it waits until the finished lines are
// committed and the limits are checked again. A limit is therefore exceeded by no more than what the lines in flight
// at that moment cost beyond their estimates, because each worker spends only its own reservations.
//
// Per project and account: `unsent` is the sum of reservations of lines that are not in flight; `excess` is the cost
// of finished lines beyond their reservations, until a check of all open chunks has read it from the database. The
// remaining funds are the difference.
import type { LimitMetric } from '../../../domain/limit.ts'
import { addSpend, counted, isZero, minus, NO_SPEND, type Spend } from '../../../domain/money.ts'
import type { Fresh } from '../../../results/chunk-results.ts'
import { IN_FLIGHT, type LineState, REMOTE, UNFUNDED } from '../../line-state.ts'
import type { Capped, Run } from '../../run.ts'

/** Committed excess, as a share of the unsent reservations, from which a check is due. */
const LOW_SHARE = 0.25

interface Account {
  /** The metrics of the blocking limits on this account. */
  metrics: Set<LimitMetric>
  unsent: Spend
  excess: Spend
  /** The part of the excess that is committed. */
  committed: Spend
}

export class ReservedFunds {
  readonly state = UNFUNDED
  readonly #turn: { checkLimits(): void }
  readonly #accounts = new Map<string, Map<string, Account>>()
  /** The uncommitted excess of each run, by the accounts that it counts to. */
  readonly #open = new Map<Run, Map<readonly string[], Spend>>()
  /** Projects whose reserved funds did not cover a line. */
  readonly #short = new Set<string>()

  constructor(turn: { checkLimits(): void }) {
    this.#turn = turn
  }

  until(run: Run, position: number): number | null {
    return run.isAllowed(position) ? null : Number.POSITIVE_INFINITY
  }

  keep(): void {
    this.#turn.checkLimits()
  }

  cap(project_id: string, capped: readonly Capped[]): void {
    for (const { account, metric } of capped) this.#account(project_id, account).metrics.add(metric)
  }

  /** Forgets limits that apply to no run. */
  capAsReserved(project_id: string): void {
    for (const account of this.#accounts.get(project_id)?.values() ?? []) account.metrics.clear()
    for (const { claim, capped } of this.#open.keys())
      if (claim.project_id === project_id) this.cap(project_id, capped)
  }

  open(run: Run): void {
    if (this.#open.has(run)) return
    this.#open.set(run, new Map())
    this.cap(run.claim.project_id, run.capped)
    this.#addAllUnsent(run, 1)
  }

  /** Removes a run that is sealed, parked or lost; its uncommitted excess is dropped. */
  close(run: Run): void {
    const uncommitted = this.#open.get(run)
    if (!uncommitted) return
    this.#addAllUnsent(run, -1)
    for (const [names, excess] of uncommitted)
      for (const account of this.#accountsOf(run, names)) add(account.excess, excess, -1)
    this.#open.delete(run)
    const { project_id } = run.claim
    if (this.runsOf(project_id).length === 0) this.#accounts.delete(project_id)
  }

  #addAllUnsent(run: Run, sign: 1 | -1): void {
    for (let position = 0; position < run.lines.length; position++)
      if (isUnsentReserved(run, position)) this.#addUnsent(run, position, sign)
  }

  /** Removes all runs: the session has expired, and its reservations with it. */
  closeAll(): void {
    this.#open.clear()
    this.#accounts.clear()
    this.#short.clear()
  }

  /** The runs of a project that are open or about to be opened. */
  runsOf(project_id: string): Run[] {
    return [...this.#open.keys()].filter(({ claim }) => claim.project_id === project_id)
  }

  setReserved(run: Run, position: number, is: boolean): void {
    const isReserved = is && !isZero(run.lines[position]!.projected)
    if (run.isReserved(position) === isReserved) return
    const isCounted = this.#open.has(run) && isUnsent(run.stateOf(position))
    run.setReserved(position, isReserved)
    if (isCounted) this.#addUnsent(run, position, isReserved ? 1 : -1)
  }

  /** Applies a new state of a line with a reservation: in flight, the reservation counts as used. */
  moved(run: Run, position: number, from: LineState, to: LineState): void {
    if (isUnsent(from) === isUnsent(to) || !this.#open.has(run)) return
    this.#addUnsent(run, position, isUnsent(to) ? 1 : -1)
  }

  covers(run: Run, position: number): boolean {
    if (!run.isReserved(position)) return true
    const { projected } = run.lines[position]!
    for (const { metrics, unsent, excess } of this.#accountsOf(run, run.accountsOf(position)))
      for (const metric of metrics) {
        const need = counted(projected, metric)
        if (need > 0 && counted(unsent, metric) - counted(excess, metric) < need) return false
      }
    return true
  }

  fellShort(run: Run): void {
    this.#short.add(run.claim.project_id)
    this.#turn.checkLimits()
  }

  /** Whether the reserved funds did not cover a line of the project since the last call. */
  takeShort(project_id: string): boolean {
    return this.#short.delete(project_id)
  }

  isShort(project_id: string): boolean {
    return this.#short.has(project_id)
  }

  ended(run: Run, position: number, spent: Spend): void {
    const uncommitted = this.#open.get(run)
    if (!uncommitted || !this.#accounts.has(run.claim.project_id)) return
    const { projected } = run.lines[position]!
    const excess = minus(spent, run.isReserved(position) ? projected : NO_SPEND)
    if (isZero(excess)) return
    const names = run.accountsOf(position)
    for (const account of this.#accountsOf(run, names)) add(account.excess, excess, 1)
    addSpend(uncommitted, names, excess)
    const { fresh } = run.results
    fresh.excess ??= new Map()
    addSpend(fresh.excess, names, excess)
  }

  /** Moves the excess of committed lines from the run to its accounts. */
  committed(run: Run, { excess }: Fresh): void {
    const uncommitted = this.#open.get(run)
    if (!uncommitted || excess === null) return
    for (const [names, part] of excess) {
      const sum = uncommitted.get(names)
      if (sum) add(sum, part, -1)
      for (const account of this.#accountsOf(run, names)) add(account.committed, part, 1)
    }
  }

  /** Whether committed excess takes such a part of the reserved funds that a check may free funds. */
  get isLow(): boolean {
    for (const accounts of this.#accounts.values())
      for (const { metrics, unsent, committed } of accounts.values())
        for (const metric of metrics)
          if (counted(committed, metric) > LOW_SHARE * counted(unsent, metric)) return true
    return false
  }

  /** Begins a check of all runs of a project; the returned function ends it. */
  beginExcessCheck(project_id: string): () => void {
    const before = [...(this.#accounts.get(project_id)?.values() ?? [])].map(
      (account) => [account, { ...account.committed }] as const,
    )
    return () => {
      for (const [account, spend] of before) {
        add(account.excess, spend, -1)
        add(account.committed, spend, -1)
      }
    }
  }

  #addUnsent(run: Run, position: number, sign: 1 | -1): void {
    const { projected } = run.lines[position]!
    for (const account of this.#accountsOf(run, run.accountsOf(position)))
      add(account.unsent, projected, sign)
  }

  #accountsOf({ claim: { project_id } }: Run, names: readonly string[]): Account[] {
    return names.map((name) => this.#account(project_id, name))
  }

  #account(project_id: string, name: string): Account {
    let accounts = this.#accounts.get(project_id)
    if (!accounts) {
      accounts = new Map()
      this.#accounts.set(project_id, accounts)
    }
    let account = accounts.get(name)
    if (!account) {
      const [unsent, excess, committed] = [{ ...NO_SPEND }, { ...NO_SPEND }, { ...NO_SPEND }]
      account = { metrics: new Set(), unsent, excess, committed }
      accounts.set(name, account)
    }
    return account
  }
}

export function isUnsentReserved(run: Run, position: number): boolean {
  return run.isReserved(position) && isUnsent(run.stateOf(position))
}

/** Whether a line in this state has an unused reservation. */
function isUnsent(state: LineState): boolean {
  return state < IN_FLIGHT || (state > IN_FLIGHT && state < REMOTE)
}

function add(sum: Spend, by: Spend, sign: 1 | -1): void {
  sum.cost_nanos = Math.max(0, sum.cost_nanos + sign * by.cost_nanos)
  sum.tokens = Math.max(0, sum.tokens + sign * by.tokens)
  sum.requests = Math.max(0, sum.requests + sign * by.requests)
}
