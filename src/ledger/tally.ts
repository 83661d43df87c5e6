// Sums finished lines by day, entity and model for the ledger. Most chunks have one entity and one model, so a
// thousand lines become one group.

import { addTokens, type TokenUsage } from '../domain/money.ts'
import { addInPlace, NO_SPEND, type Spend, sumOf } from '../domain/spend.ts'

/** The facts of a finished line that the ledger needs. */
export interface EndedLine {
  part: 'output' | 'error'
  /**
   * The UTC day to which the line is charged: the one under whose limits it was reserved, or else the one on which it
   * ended. A clock that is set, in either direction, therefore moves no charge into a window that was not checked.
   */
  day: number
  model: string | null
  entity: string | null
  /** Null for a line without a result. */
  usage: TokenUsage | null
  cost_nanos: number
  projected: Spend
  /** Whether that is part of its chunk's reservation. */
  isReserved: boolean
  /** Of a line that shares an identical line's answer: what its own would have cost; null for all others. */
  saved_nanos: number | null
  /** Whether it failed without having been sent. */
  isNotRun?: boolean
}

/** Lines that share day, entity and model. */
export interface Tally {
  day: number
  entity: string | null
  model: string | null
  succeeded: number
  failed: number
  prompt_tokens: number
  completion_tokens: number
  total_tokens: number
  /** Absent in journals of earlier versions. */
  cached_tokens?: number | undefined
  reasoning_tokens?: number | undefined
  cost_nanos: number
  /** Lines that share an answer, and what their own would have cost; absent in journals of earlier versions. */
  shared_lines?: number | undefined
  saved_nanos?: number | undefined
  /** Of the failed lines; absent in journals of earlier versions. */
  not_run?: number | undefined
  projected: Spend
  reserved: Spend
}

export class Tallies {
  readonly #groups: Tally[] = []
  #last: Tally | undefined

  get all(): readonly Tally[] {
    return this.#groups
  }

  add(line: EndedLine): void {
    if (!this.#last || !belongs(line, this.#last)) this.#last = this.#groupOf(line)
    add(this.#last, line)
  }

  /** Adds the sums of other lines. */
  join(other: Tally): void {
    const sums = this.#groupOf(other)
    sums.succeeded += other.succeeded
    sums.failed += other.failed
    sums.not_run = (sums.not_run ?? 0) + (other.not_run ?? 0)
    sums.cost_nanos = sumOf(sums.cost_nanos, other.cost_nanos)
    Object.assign(sums, addShared(sums, other))
    Object.assign(sums, addTokens(sums, other))
    addInPlace(sums.projected, other.projected)
    addInPlace(sums.reserved, other.reserved)
  }

  #groupOf(line: TallyKey): Tally {
    let group = this.#groups.find((one) => belongs(line, one))
    if (!group) {
      group = emptyTally(line)
      this.#groups.push(group)
    }
    return group
  }
}

/** Lines that shared the answer of an identical line, and what that saved. */
interface Shared {
  shared_lines: number
  saved_nanos: number
}

export function addShared(a: Partial<Shared>, b: Partial<Shared>): Shared {
  return {
    shared_lines: (a.shared_lines ?? 0) + (b.shared_lines ?? 0),
    saved_nanos: sumOf(a.saved_nanos ?? 0, b.saved_nanos ?? 0),
  }
}

export function tally(lines: Iterable<EndedLine>): readonly Tally[] {
  const tallies = new Tallies()
  for (const line of lines) tallies.add(line)
  return tallies.all
}

type TallyKey = Pick<EndedLine, 'day' | 'entity' | 'model'>

function belongs(line: TallyKey, sums: Tally): boolean {
  return sums.day === line.day && sums.entity === line.entity && sums.model === line.model
}

function emptyTally({ day, entity, model }: TallyKey): Tally {
  return {
    day,
    entity,
    model,
    succeeded: 0,
    failed: 0,
    prompt_tokens: 0,
    completion_tokens: 0,
    total_tokens: 0,
    cached_tokens: 0,
    reasoning_tokens: 0,
    cost_nanos: 0,
    shared_lines: 0,
    saved_nanos: 0,
    not_run: 0,
    projected: { ...NO_SPEND },
    reserved: { ...NO_SPEND },
  }
}

function add(sums: Tally, line: EndedLine): void {
  if (line.part === 'output') sums.succeeded++
  else sums.failed++
  if (line.isNotRun) sums.not_run = (sums.not_run ?? 0) + 1
  sums.prompt_tokens = sumOf(sums.prompt_tokens, line.usage?.prompt_tokens ?? 0)
  sums.completion_tokens = sumOf(sums.completion_tokens, line.usage?.completion_tokens ?? 0)
  sums.total_tokens = sumOf(sums.total_tokens, line.usage?.total_tokens ?? 0)
  sums.cached_tokens = sumOf(sums.cached_tokens ?? 0, line.usage?.cached_tokens ?? 0)
  sums.reasoning_tokens = sumOf(sums.reasoning_tokens ?? 0, line.usage?.reasoning_tokens ?? 0)
  sums.cost_nanos = sumOf(sums.cost_nanos, line.cost_nanos)
  if (line.saved_nanos !== null)
    Object.assign(sums, addShared(sums, { shared_lines: 1, saved_nanos: line.saved_nanos }))
  addInPlace(sums.projected, line.projected)
  if (line.isReserved) addInPlace(sums.reserved, line.projected)
}
