// Finds the order of the columns in a prompt with which rows share most of its beginning, since model servers cache the
// computation of a prefix: columns with few values before those with many.

/** Rows that are compared: more take longer than the advice is worth. */
const ROWS_MAX = 5000
const COLUMNS_MAX = 6
/** The least share of the prompts that another order has to save. */
const WORTH = 0.1

/** A cell's hash and length. */
type CellKey = readonly [hash: number, length: number]

export interface OrderAdvice {
  /** The columns as a template has them, in the order that shares most. */
  columns: string
  /** Shares of the prompts' characters that repeat the beginning of an earlier one: in that order, and as written. */
  shared: number
  as_written: number
}

export class ColumnOrder {
  /** The texts of the template: before the first column, and after each. */
  readonly #texts: readonly string[]
  readonly #names: readonly string[]
  readonly #columns: readonly number[]
  readonly #rows: CellKey[][] = []
  /** Whether the template has two columns or more, each once and outside of sections. */
  readonly #isReorderable: boolean

  /** Makes the order of a template. `before`: the text in front of the template, which all rows share. */
  constructor(template: string, columns: readonly string[], before = '') {
    const parts = template.split(/\{\{([^{}]+)\}\}/)
    this.#texts = parts.filter((_, i) => i % 2 === 0).map((text, i) => (i === 0 ? before + text : text))
    this.#names = parts.filter((_, i) => i % 2 === 1).map((name) => name.trim())
    this.#columns = this.#names.map((name) => columns.findIndex((column) => column.trim() === name))
    const { length } = this.#columns
    const isSimple = new Set(this.#columns).size === length && !this.#columns.includes(-1)
    this.#isReorderable = isSimple && length > 1 && length <= COLUMNS_MAX && !before.includes('{{')
  }

  add(textOf: (column: number) => string): void {
    if (!this.#isReorderable || this.#rows.length === ROWS_MAX) return
    this.#rows.push(this.#columns.map((column) => keyOf(textOf(column))))
  }

  /** Moves one column forward at a time, as long as that saves most; null where no other order shares much more. */
  advice(): OrderAdvice | null {
    const written = this.#columns.map((_, i) => i)
    const as_written = this.#sharedBy(written)
    let best = { order: written, shared: as_written }
    for (let last = -1; best.shared > last; ) {
      last = best.shared
      const { order } = best
      for (let from = 1; from < order.length; from++)
        for (let to = 0; to < from; to++) {
          const moved = order.toSpliced(from, 1).toSpliced(to, 0, order[from]!)
          const shared = this.#sharedBy(moved)
          if (shared > best.shared) best = { order: moved, shared }
        }
    }
    if (best.shared - as_written < WORTH) return null
    return {
      columns: best.order.map((at) => `{{${this.#names[at]}}}`).join(' '),
      shared: best.shared,
      as_written,
    }
  }

  #sharedBy(order: readonly number[]): number {
    const rows = this.#rows
    let shared = (this.#texts[0]?.length ?? 0) * Math.max(0, rows.length - 1)
    let all = rows.reduce((sum, row) => row.reduce((length, cell) => length + cell[1], sum), 0)
    for (const text of this.#texts) all += text.length * rows.length
    /** The number of the beginning that each row has so far. */
    let beginnings = new Float64Array(rows.length)
    for (const [place, column] of order.entries()) {
      const seen = new Map<number, number>()
      const after = this.#texts[place + 1]?.length ?? 0
      beginnings = beginnings.map((beginning, row) => {
        const [hash, length] = rows[row]![column]!
        const key = beginning * 2 ** 32 + hash
        const known = seen.get(key)
        if (known === undefined) seen.set(key, seen.size)
        else shared += length + after
        return known ?? seen.size - 1
      })
    }
    return all === 0 ? 0 : shared / all
  }
}

function keyOf(text: string): CellKey {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193)
  return [hash >>> 0, text.length]
}
