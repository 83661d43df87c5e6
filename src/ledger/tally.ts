// Sums finished lines by day, entity and model for the ledger. Most chunks have one entity and one model, so a
// thousand lines become one group.

import { recordOf } from '../domain/json-record.ts'
import { LINE_SUM_NAMES, LINE_SUMS, type LineSumName, type SummedLine } from '../domain/line-sums.ts'
import { addInPlace, NO_SPEND, negative, type Spend, sumOf } from '../domain/money.ts'

/** The facts of a finished line that the ledger needs. */
export interface EndedLine extends SummedLine {
  /**
   * The UTC day to which the line is charged: that of the limits under which it was reserved, or else that of its end.
   * A clock that is set, in either direction, therefore moves no charge into a window that was not checked.
   */
  day: number
  model: string | null
  entity: string | null
  projected: Spend
  /** Whether the chunk's reservation includes the line's projected spend. */
  isReserved: boolean
}

export type LineSums = Record<LineSumName, number>

export const NO_LINES: Readonly<LineSums> = recordOf(LINE_SUM_NAMES, () => 0)

export function addSums(a: LineSums, b: LineSums): LineSums {
  return recordOf(LINE_SUM_NAMES, (name) => sumOf(a[name], b[name]))
}

/** The sums of lines that share day, entity and model. */
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

/** The tally that reverses the counts of these lines; their reservations were released before. */
export function reversed(tally: Tally): Tally {
  return {
    ...tally,
    ...recordOf(LINE_SUM_NAMES, (name) => -tally[name]),
    projected: negative(tally.projected),
    reserved: { ...NO_SPEND },
  }
}

function add(sums: Tally, line: EndedLine): void {
  for (const name of LINE_SUM_NAMES) sums[name] = sumOf(sums[name], LINE_SUMS[name].of(line))
  addInPlace(sums.projected, line.projected)
  if (line.isReserved) addInPlace(sums.reserved, line.projected)
}
