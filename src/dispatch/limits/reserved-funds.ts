// What this worker may still send under what it has reserved. A reservation is an estimate; what a finished line
// cost beyond it is taken at once out of what is reserved for lines not sent yet, long before a commit tells the
// database. Once too little is left for a line, it is not sent: it waits until what has finished is committed and
// the limits have been asked again. So a cap is passed by no more than the lines in flight at that moment cost
// beyond their estimates, however far off estimates are: workers share reservations of one database, and none
// spends more than its own.
//
// Kept by project and spender: `unsent`, the reservations of lines that are not in flight, and `excess`, what
// finished lines cost beyond theirs, until a judgment of all open chunks has seen it in the database. What is left
// is the difference.
import { type LimitMetric, WHOLE_PROJECT } from '../../domain/limit.ts'
import { counted, isZero, type Spend } from '../../domain/spend.ts'
import type { Capped, OpenChunk } from '../../results/open-chunk.ts'
import type { Outcome } from '../../results/outcome.ts'

/** Of what is reserved. */
const LOW_SHARE = 0.25

interface Account {
  /** What limits that block count of this spender. */
  metrics: Set<LimitMetric>
  unsent: Spend
  excess: Spend
  /** The part of the excess that is committed. */
  committed: Spend
}

export class ReservedFunds {
  readonly #accounts = new Map<string, Map<string, Account>>()
  /** Of each open chunk, by entity: the excess that is not committed. */
  readonly #open = new Map<OpenChunk, Map<string | null, Spend>>()

  /** These spenders of a project are capped. */
  cap(project_id: string, capped: readonly Capped[]): void {
    for (const { spender, metric } of capped) this.#account(project_id, spender).metrics.add(metric)
  }

  /** Only the spenders that open chunks found capped are so any more. */
  capAsReserved(project_id: string): void {
    for (const account of this.#accounts.get(project_id)?.values() ?? []) account.metrics.clear()
    for (const { claim, capped } of this.#open.keys())
      if (claim.project_id === project_id) this.cap(project_id, capped)
  }

  /** The chunk is taken up, with what is reserved for it; no more happens if it was opened before. */
  open(chunk: OpenChunk): void {
    if (this.#open.has(chunk)) return
    this.#open.set(chunk, new Map())
    this.cap(chunk.claim.project_id, chunk.capped)
    for (const position of chunk.reservedUnsent) this.#addUnsent(chunk, position, 1)
  }

  /** The chunk is sealed, parked or lost; what it has not committed never happened. */
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

  /** The session is lost, and with it all that was reserved under it. */
  closeAll(): void {
    this.#open.clear()
    this.#accounts.clear()
  }

  /** Of a project: those that are open, or about to be. */
  chunksOf(project_id: string): OpenChunk[] {
    return [...this.#open.keys()].filter(({ claim }) => claim.project_id === project_id)
  }

  /** A line is reserved and not in flight. */
  reserve(chunk: OpenChunk, position: number): void {
    if (chunk.reservedUnsent.has(position) || isZero(chunk.lines[position]!.projected)) return
    chunk.reservedUnsent.add(position)
    if (this.#open.has(chunk)) this.#addUnsent(chunk, position, 1)
  }

  /** Nothing is reserved for the line any more, or it is in flight. */
  release(chunk: OpenChunk, position: number): void {
    if (chunk.reservedUnsent.delete(position) && this.#open.has(chunk)) this.#addUnsent(chunk, position, -1)
  }

  /** Whether the line may be sent now; if so, its reservation is in use from here on. */
  draw(chunk: OpenChunk, position: number): boolean {
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

  /** These outcomes count in the database now. */
  committed(chunk: OpenChunk, outcomes: readonly Outcome[]): void {
    const uncommitted = this.#open.get(chunk)
    if (!uncommitted || uncommitted.size === 0) return
    for (const outcome of outcomes) {
      const sum = uncommitted.get(outcome.entity)
      const excess = sum && this.#excessOf(chunk, outcome)
      if (!excess) continue
      // One that ended before the project had a cap was no excess then.
      const part = {
        cost_nanos: Math.min(sum.cost_nanos, excess.cost_nanos),
        tokens: Math.min(sum.tokens, excess.tokens),
      }
      add(sum, part, -1)
      for (const account of this.#accountsOf(chunk, outcome.entity)) add(account.committed, part, 1)
    }
  }

  /** Whether a good part of what is reserved covers excess that is committed, and may be forgiven if asked for. */
  get isLow(): boolean {
    for (const accounts of this.#accounts.values())
      for (const { metrics, unsent, committed } of accounts.values())
        for (const metric of metrics)
          if (counted(committed, metric) > LOW_SHARE * counted(unsent, metric)) return true
    return false
  }

  /** To be called before all open chunks of a project are judged anew, and what it returns once they are. */
  beginCheck(project_id: string): () => void {
    const seen = [...(this.#accounts.get(project_id)?.values() ?? [])].map(
      (account) => [account, { ...account.committed }] as const,
    )
    return () => {
      for (const [account, spend] of seen) {
        add(account.excess, spend, -1)
        add(account.committed, spend, -1)
      }
    }
  }

  /** What a line cost beyond what is reserved for it, where its project has caps. */
  #excessOf({ claim }: OpenChunk, { isReserved: held, projected, cost_nanos, usage }: Outcome): Spend | null {
    if (!this.#accounts.has(claim.project_id)) return null
    const excess = {
      cost_nanos: Math.max(0, cost_nanos - (held ? projected.cost_nanos : 0)),
      tokens: Math.max(0, (usage?.total_tokens ?? 0) - (held ? projected.tokens : 0)),
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
