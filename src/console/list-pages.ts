// The rows of a list of the service, read page by page as they come into sight, and kept while they are shown. Most lists
// are read one page behind the other; of a numbered one any page can be read. Rows that are not read are undefined.
import type { ApiFailure } from './api.ts'
import { later } from './browser-clock.ts'

/** The distance from the last read row, in rows, at which the next page is requested. */
const AHEAD = 60
/** The pause in ms after which a jump to other rows reads them: a reader may jump on. */
const JUMP_MS = 60

export interface ListSource<T> {
  /** The name of the list; another name means another list. */
  name: string
  /** Reads the rows behind `cursor`, or the first ones. `next`: the next cursor, null at the end of the list. */
  read: (cursor: string | null, signal: AbortSignal) => Promise<{ rows: readonly T[]; next: string | null }>
  /** Set for a list whose cursors are the numbers of its rows, from 1; `read` fills each page. */
  numbered?: { total: number; page: number }
}

/** A page: its rows from `at` to `end`, which is infinite until the last page is read. */
type Place = { at: number; end: number; cursor: string | null; reading?: AbortController }

export class ListPages<T> {
  readonly #source: ListSource<T>
  readonly #rows: (T | undefined)[] = []
  readonly #places: Place[]
  #sight: readonly [from: number, to: number] = [0, 1]
  #onChange: () => void = () => {}
  #cancelRead: () => void = () => {}
  failure: ApiFailure | null = null

  constructor(source: ListSource<T>) {
    this.#source = source
    const { total, page } = source.numbered ?? { total: 0, page: 1 }
    this.#rows.length = total
    this.#places = source.numbered
      ? Array.from({ length: Math.ceil(total / page) }, (_, i) => {
          return { at: i * page, end: Math.min((i + 1) * page, total), cursor: String(i * page) }
        })
      : [{ at: 0, end: Number.POSITIVE_INFINITY, cursor: null }]
  }

  get rows(): readonly (T | undefined)[] {
    return this.#rows
  }

  /** Whether there may be more rows than the known ones. */
  get hasMore(): boolean {
    return this.#places.at(-1)?.end === Number.POSITIVE_INFINITY
  }

  get inSight(): readonly (T | undefined)[] {
    return this.#rows.slice(...this.#sight)
  }

  start(onChange: () => void): void {
    this.#onChange = onChange
    this.readMissing()
  }

  end(): void {
    this.#onChange = () => {}
    this.#cancelRead()
    for (const { reading } of this.#places) reading?.abort()
  }

  /** Sets the rows in sight, `to` excluded. */
  show(from: number, to: number): void {
    const isJump = from >= this.#sight[1] || to <= this.#sight[0]
    this.#sight = [from, to]
    this.#cancelRead()
    if (isJump && this.#source.numbered) this.#cancelRead = later(JUMP_MS, () => this.readMissing())
    else this.readMissing()
  }

  /** Reads the missing rows in sight. */
  readMissing(): void {
    const [from, to] = this.#sight
    for (const place of this.#places)
      if (place.at >= to + AHEAD || place.end <= from) place.reading?.abort()
      else if (this.#rows[place.at] === undefined) void this.#read(place)
  }

  /** Reads the rows in sight again, and other rows when they come into sight. */
  refresh(): void {
    const [from, to] = this.#sight
    const within = this.#places.filter(({ at, end }) => at < to && end > from)
    const [first = this.#places[0]] = within
    if (!this.#source.numbered) {
      if (first) void this.#read(first, to)
      return
    }
    for (const place of this.#places)
      if (within.includes(place)) void this.#read(place)
      else if (this.#rows[place.at] !== undefined) this.#rows.fill(undefined, place.at, place.end)
  }

  /** Reads a page and those behind it up to row `to`. */
  async #read(place: Place, to = 0): Promise<void> {
    if (place.reading?.signal.aborted === false) return
    const reading = new AbortController()
    place.reading = reading
    const found: T[] = []
    const places: Place[] = []
    let { cursor }: { cursor: string | null } = place
    try {
      do {
        const { rows, next } = await this.#source.read(cursor, reading.signal)
        const at = place.at + found.length
        found.push(...rows)
        if (rows.length > 0) places.push({ at, end: at + rows.length, cursor })
        cursor = next
      } while (cursor !== null && (found.length === 0 || place.at + found.length < to))
      this.failure = null
      if (!this.#places.includes(place)) return
      if (this.#source.numbered) for (const [i, row] of found.entries()) this.#rows[place.at + i] = row
      else {
        const at = place.at + found.length
        if (cursor !== null) places.push({ at, end: Number.POSITIVE_INFINITY, cursor })
        if (places.length === 0) places.push({ at, end: at, cursor: place.cursor })
        this.#rows.splice(place.at, this.#rows.length, ...found)
        this.#places.splice(this.#places.indexOf(place), this.#places.length, ...places)
      }
    } catch (failure) {
      if (reading.signal.aborted) return
      this.failure = failure as ApiFailure
    } finally {
      if (place.reading === reading) delete place.reading
    }
    this.#onChange()
    if (!this.failure && found.length > 0) this.readMissing()
  }
}
