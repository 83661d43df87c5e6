// The funds that this worker has reserved and not used yet. A reservation is an estimate. When a finished line cost
// more than its reservation, the excess is deducted at once from the reservations of unsent lines, before a commit
// tells the database. A line that the remaining funds do not cover is not sent; it waits until the finished lines are
// committed and the limits are checked again. A limit is therefore exceeded by no more than what the lines in flight
// at that moment cost beyond their estimates, because each worker spends only its own reservations.
//
// Per project and spender: `unsent` is the sum of reservations of lines that are not in flight; `excess` is the cost
// of finished lines beyond their reservations, until a check of all open chunks has read it from the database. The
// remaining funds are the difference.
import { type LimitMetric, WHOLE_PROJECT } from '../../domain/limit.ts'
import { counted, isZero, type Spend } from '../../domain/spend.ts'
import type { Capped, OpenChunk } from '../../results/open-chunk.ts'
import type { Outcome } from '../../results/outcome.ts'

/** Committed excess, as a share of the unsent reservations, from which a check is due. */
const LOW_SHARE = 0.25

interface Account {
  /** The metrics of the blocking limits that match this spender. */
  metrics: Set<LimitMetric>
  unsent: Spend
  excess: Spend
  /** The part of the excess that is committed. */
  committed: Spend
}

export class ReservedFunds {
  readonly #accounts = new Map<string, Map<string, Account>>()
  /** The uncommitted excess of each open chunk, by entity. */
  readonly #open = new Map<OpenChunk, Map<string | null, Spend>>()

  /** These spenders of a project are capped. */
  cap(project_id: string, capped: readonly Capped[]): void {
    for (const { spender, metric } of capped) this.#account(project_id, spender).metrics.add(metric)
  }

  /** Forgets limits that no open chunk has met. */
  capAsReserved(project_id: string): void {
    for (const account of this.#accounts.get(project_id)?.values() ?? []) account.metrics.clear()
    for (const { claim, capped } of this.#open.keys())
      if (claim.project_id === project_id) this.cap(project_id, capped)
  }

  /** Adds a chunk with its reservations, unless it was added before. */
  open(chunk: OpenChunk): void {
    if (this.#open.has(chunk)) return
    this.#open.set(chunk, new Map())
    this.cap(chunk.claim.project_id, chunk.capped)
    for (const position of chunk.reservedUnsent) this.#addUnsent(chunk, position, 1)
  }

  /** Removes a sealed, parked or lost chunk; its uncommitted excess is dropped. */
  close(chunk: OpenChunk): void {
    const uncommitted = this.#open.get(chunk)
    if (!uncommitted) return
    for (const position of chunk.reservedUnsent) this.#addUnsent(chunk, position, -1)
    for (const [entity, excess] of uncommitted)
      for (const account of this.#accountsOf(chunk, entity)) add(account.excess, excess, -1)
    this.#open.delete(chunk)
    const { project_id } = chunk.claim
    if (this.chunksOf(project_id).length === 0) this.#accounts.delete(project_id)
  }

  /** The session expired, and all its reservations with it. */
  closeAll(): void {
    this.#open.clear()
    this.#accounts.clear()
  }

  /** The chunks of a project that are open or about to be opened. */
  chunksOf(project_id: string): OpenChunk[] {
    return [...this.#open.keys()].filter(({ claim }) => claim.project_id === project_id)
  }

  /** A line is reserved and not in flight. */
  reserve(chunk: OpenChunk, position: number): void {
    if (chunk.reservedUnsent.has(position) || isZero(chunk.lines[position]!.projected)) return
    chunk.reservedUnsent.add(position)
    if (this.#open.has(chunk)) this.#addUnsent(chunk, position, 1)
  }

  /** The line has no reservation any more, or it is in flight. */
  release(chunk: OpenChunk, position: number): void {
    if (chunk.reservedUnsent.delete(position) && this.#open.has(chunk)) this.#addUnsent(chunk, position, -1)
  }

  /** Whether the funds cover the line. If so, its reservation counts as used. */
  draw(chunk: OpenChunk, position: number): boolean {
    if (chunk.unchecked.delete(position)) return false
    if (!chunk.reservedUnsent.has(position)) return true
    const { projected, entity } = chunk.lines[position]!
    for (const { metrics, unsent, excess } of this.#accountsOf(chunk, entity))
      for (const metric of metrics) {
        const need = counted(projected, metric)
        if (need > 0 && counted(unsent, metric) - counted(excess, metric) < need) return false
      }
    this.release(chunk, position)
    return true
  }

  /** A line has ended, sent or not. */
  ended(chunk: OpenChunk, outcome: Outcome): void {
    const uncommitted = this.#open.get(chunk)
    if (!uncommitted) return
    this.release(chunk, chunk.positionOf(outcome.line))
    const excess = this.#excessOf(chunk, outcome)
    if (!excess) return
    for (const account of this.#accountsOf(chunk, outcome.entity)) add(account.excess, excess, 1)
    const sum = uncommitted.get(outcome.entity)
    if (sum) add(sum, excess, 1)
    else uncommitted.set(outcome.entity, { ...excess })
  }

  /** These outcomes are committed. */
  committed(chunk: OpenChunk, outcomes: readonly Outcome[]): void {
    const uncommitted = this.#open.get(chunk)
    if (!uncommitted || uncommitted.size === 0) return
    for (const outcome of outcomes) {
      const sum = uncommitted.get(outcome.entity)
      const excess = sum && this.#excessOf(chunk, outcome)
      if (!excess) continue
      // A line that ended before the project had a limit was not counted as excess.
      const part = {
        cost_nanos: Math.min(sum.cost_nanos, excess.cost_nanos),
        tokens: Math.min(sum.tokens, excess.tokens),
      }
      add(sum, part, -1)
      for (const account of this.#accountsOf(chunk, outcome.entity)) add(account.committed, part, 1)
    }
  }

  /** Whether so much of the reserved funds covers committed excess that a check may free funds. */
  get isLow(): boolean {
    for (const accounts of this.#accounts.values())
      for (const { metrics, unsent, committed } of accounts.values())
        for (const metric of metrics)
          if (counted(committed, metric) > LOW_SHARE * counted(unsent, metric)) return true
    return false
  }

  /** Call this before all open chunks of a project are checked, and the function that it returns after that. */
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

  /** The cost of a line beyond its reservation, if its project has limits. */
  #excessOf({ claim }: OpenChunk, { isReserved, projected, cost_nanos, usage }: Outcome): Spend | null {
    if (!this.#accounts.has(claim.project_id)) return null
    const excess = {
      cost_nanos: Math.max(0, cost_nanos - (isReserved ? projected.cost_nanos : 0)),
      tokens: Math.max(0, (usage?.total_tokens ?? 0) - (isReserved ? projected.tokens : 0)),
    }
    return isZero(excess) ? null : excess
  }

  #addUnsent(chunk: OpenChunk, position: number, sign: 1 | -1): void {
    const { entity, projected } = chunk.lines[position]!
    for (const account of this.#accountsOf(chunk, entity)) add(account.unsent, projected, sign)
  }

  #accountsOf({ claim: { project_id } }: OpenChunk, entity: string | null): Account[] {
    const whole = this.#account(project_id, WHOLE_PROJECT)
    return entity === null ? [whole] : [whole, this.#account(project_id, entity)]
  }

  #account(project_id: string, spender: string): Account {
    let accounts = this.#accounts.get(project_id)
    if (!accounts) {
      accounts = new Map()
      this.#accounts.set(project_id, accounts)
    }
    let account = accounts.get(spender)
    if (!account) {
      account = { metrics: new Set(), unsent: nothing(), excess: nothing(), committed: nothing() }
      accounts.set(spender, account)
    }
    return account
  }
}

function nothing(): Spend {
  return { cost_nanos: 0, tokens: 0 }
}

function add(sum: Spend, by: Spend, sign: 1 | -1): void {
  sum.cost_nanos = Math.max(0, sum.cost_nanos + sign * by.cost_nanos)
  sum.tokens = Math.max(0, sum.tokens + sign * by.tokens)
}
