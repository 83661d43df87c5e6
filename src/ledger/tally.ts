// Sums finished lines by day, entity and model for the ledger. Most chunks have one entity and one model, so a
// thousand lines become one group.

import { recordOf } from '../domain/json-record.ts'
import type { TokenUsage } from '../domain/money.ts'
import { addInPlace, NO_SPEND, type Spend, sumOf } from '../domain/money.ts'

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

const COUNTED = [
  ...['succeeded', 'failed', 'prompt_tokens', 'completion_tokens', 'total_tokens', 'cost_nanos'],
  ...['cached_tokens', 'reasoning_tokens'],
  // Of the failed lines.
  'not_run',
  // Lines that share the answer of an identical line, and what their own answers would have cost.
  ...['shared_lines', 'saved_nanos'],
] as const

/** What is counted of finished lines. */
export type LineSums = Record<(typeof COUNTED)[number], number>

export const NO_LINES: Readonly<LineSums> = recordOf(COUNTED, () => 0)

export function addSums(a: LineSums, b: LineSums): LineSums {
  return recordOf(COUNTED, (name) => sumOf(a[name], b[name]))
}

/** Lines that share day, entity and model. */
export interface Tally extends TallyKey, LineSums {
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
    Object.assign(sums, addSums(sums, other))
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

type TallyKey = Pick<EndedLine, 'day' | 'entity' | 'model'>

function belongs(line: TallyKey, sums: Tally): boolean {
  return sums.day === line.day && sums.entity === line.entity && sums.model === line.model
}

function emptyTally({ day, entity, model }: TallyKey): Tally {
  return { day, entity, model, ...NO_LINES, projected: { ...NO_SPEND }, reserved: { ...NO_SPEND } }
}

/** What reverses the counts of these lines; their reservations were released before. */
export function reversed(tally: Tally): Tally {
  const { cost_nanos, tokens } = tally.projected
  return {
    ...tally,
    ...recordOf(COUNTED, (name) => -tally[name]),
    projected: { cost_nanos: -cost_nanos, tokens: -tokens },
    reserved: { ...NO_SPEND },
  }
}

function add(sums: Tally, line: EndedLine): void {
  if (line.part === 'output') sums.succeeded++
  else sums.failed++
  if (line.isNotRun) sums.not_run++
  sums.prompt_tokens = sumOf(sums.prompt_tokens, line.usage?.prompt_tokens ?? 0)
  sums.completion_tokens = sumOf(sums.completion_tokens, line.usage?.completion_tokens ?? 0)
  sums.total_tokens = sumOf(sums.total_tokens, line.usage?.total_tokens ?? 0)
  sums.cached_tokens = sumOf(sums.cached_tokens, line.usage?.cached_tokens ?? 0)
  sums.reasoning_tokens = sumOf(sums.reasoning_tokens, line.usage?.reasoning_tokens ?? 0)
  sums.cost_nanos = sumOf(sums.cost_nanos, line.cost_nanos)
  if (line.saved_nanos !== null) {
    sums.shared_lines++
    sums.saved_nanos = sumOf(sums.saved_nanos, line.saved_nanos)
  }
  addInPlace(sums.projected, line.projected)
  if (line.isReserved) addInPlace(sums.reserved, line.projected)
}
