// Counters and histograms for places that a line passes in microseconds: a series is looked up once and kept,
// and counting in it is an addition. (prom-client's own validate and hash their labels each time.)
// They are shown by a ProcessRegistry; a plain one would print prom-client's own, empty series.
import { Counter, Histogram, type HistogramConfiguration } from 'prom-client'

type Labels<T extends string> = Record<T, string>

export class CountCell {
  value = 0
}

export class CellCounter<T extends string> extends Counter<T> {
  readonly #cells: { labels: Labels<T>; cell: CountCell }[] = []

  /** A series of its own; to be kept, since asking again makes another. */
  cell(labels: Labels<T>): CountCell {
    const cell = new CountCell()
    this.#cells.push({ labels, cell })
    return cell
  }

  override async get() {
    const values = this.#cells.map(({ labels, cell }) => ({ labels, value: cell.value }))
    return { ...(await super.get()), values }
  }
}

export class HistogramCell {
  readonly counts: number[]
  readonly #bounds: readonly number[]
  sum = 0
  count = 0

  constructor(bounds: readonly number[]) {
    this.#bounds = bounds
    this.counts = new Array(bounds.length).fill(0)
  }

  observe(value: number): void {
    this.sum += value
    this.count++
    const bucket = this.#bounds.findIndex((bound) => value <= bound)
    if (bucket !== -1) this.counts[bucket]!++
  }
}

export class CellHistogram<T extends string> extends Histogram<T> {
  readonly #bounds: readonly number[]
  readonly #name: string
  readonly #cells: { labels: Labels<T>; cell: HistogramCell }[] = []

  constructor(description: HistogramConfiguration<T> & { buckets: number[] }) {
    super(description)
    this.#name = description.name
    this.#bounds = description.buckets
  }

  /** A series of its own; to be kept, since asking again makes another. */
  cell(labels: Labels<T>): HistogramCell {
    const cell = new HistogramCell(this.#bounds)
    this.#cells.push({ labels, cell })
    return cell
  }

  override async get() {
    const values = this.#cells.flatMap(({ labels, cell }) => this.#series(labels, cell))
    return { ...(await super.get()), values }
  }

  #series(labels: Labels<T>, { counts, sum, count }: HistogramCell) {
    const name = this.#name
    let below = 0
    const buckets = this.#bounds.map((bound, i) => {
      below += counts[i]!
      return { metricName: `${name}_bucket`, labels: { ...labels, le: bound }, value: below }
    })
    return [
      ...buckets,
      { metricName: `${name}_bucket`, labels: { ...labels, le: '+Inf' }, value: count },
      { metricName: `${name}_sum`, labels, value: sum },
      { metricName: `${name}_count`, labels, value: count },
    ]
  }
}
