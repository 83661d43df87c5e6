// Loads the lines of a batch for a list: in any order without a filter, page after page with one. Lines that are not
// loaded are null.
import type { LineSummary, LinesQuery } from '../wire/batch-line.ts'
import type { List } from '../wire/list.ts'
import { fetchApi, get, pathWith, type Query } from './api.ts'

const PAGE = 200
/** About 10,000 lines. */
const PAGES_KEPT = 50

export type LineFilter = Pick<LinesQuery, 'status' | 'code' | 'message' | 'model' | 'entity' | 'search'>

export class LinePages {
  readonly #path: string
  readonly #filter: LineFilter
  readonly #onChange: () => void
  readonly #filtered: boolean
  readonly #pages = new Map<number, readonly LineSummary[]>()
  readonly #asked = new Map<number, AbortController>()
  #found: LineSummary[] = []
  #cursor: string | null = '0'
  #total: number
  failed: unknown = null

  constructor(batchId: string, filter: LineFilter, total: number, onChange: () => void) {
    this.#path = `/v1/batches/${encodeURIComponent(batchId)}/lines`
    this.#filter = filter
    this.#filtered = Object.values(filter).some((value) => value !== undefined && value !== '')
    this.#total = total
    this.#onChange = onChange
  }

  /** As far as is known: a filtered list grows while it is read. */
  get total(): number {
    return this.#filtered ? this.#found.length + (this.#cursor === null ? 0 : 1) : this.#total
  }

  get isComplete(): boolean {
    return !this.#filtered || this.#cursor === null
  }

  at(index: number): LineSummary | null {
    if (this.#filtered) return this.#found[index] ?? null
    return this.#pages.get(Math.floor(index / PAGE))?.find(({ line }) => line === index + 1) ?? null
  }

  /** Reads what is missing of these rows. */
  need(from: number, to: number): void {
    if (this.#filtered) {
      if (to >= this.#found.length && this.#cursor !== null) void this.#more()
      return
    }
    const first = Math.floor(from / PAGE)
    const last = Math.floor(Math.max(from, to - 1) / PAGE)
    for (const [page, abort] of this.#asked) if (page < first || page > last) abort.abort()
    for (let page = first; page <= last; page++) if (!this.#pages.has(page)) void this.#read(page)
  }

  /** Of a batch that runs: what was read may have changed. */
  refresh(from: number, to: number, total: number): void {
    this.#total = total
    if (this.#filtered) {
      if (this.#found.length < PAGE) {
        this.#cursor = '0'
        void this.#more(true)
      }
      return
    }
    const first = Math.floor(from / PAGE)
    const last = Math.floor(Math.max(from, to - 1) / PAGE)
    for (const page of [...this.#pages.keys()]) if (page < first || page > last) this.#pages.delete(page)
    for (let page = first; page <= last; page++) void this.#read(page)
  }

  end(): void {
    for (const abort of this.#asked.values()) abort.abort()
  }

  async #read(page: number): Promise<void> {
    const lines = await this.#ask(page, async (signal) => {
      const lines: LineSummary[] = []
      const end = (page + 1) * PAGE
      // A page of the service may be short, and the list still go on.
      for (let after = page * PAGE; after < end; ) {
        const { data, next_cursor } = await this.#get({ after, limit: end - after }, signal)
        lines.push(...data.filter(({ line }) => line <= end))
        if (next_cursor === null) break
        after = Number(next_cursor)
      }
      return lines
    })
    if (!lines) return
    this.#pages.set(page, lines)
    for (const old of this.#pages.keys())
      if (this.#pages.size > PAGES_KEPT && old !== page) this.#pages.delete(old)
    this.#onChange()
  }

  async #more(afresh = false): Promise<void> {
    const found = await this.#ask(-1, async (signal) => {
      const lines: LineSummary[] = []
      let cursor = this.#cursor
      while (cursor !== null && lines.length < PAGE) {
        const { data, next_cursor } = await this.#get(
          { ...this.#filter, after: Number(cursor), limit: PAGE },
          signal,
        )
        lines.push(...data)
        cursor = next_cursor
      }
      return { lines, cursor }
    })
    if (!found) return
    this.#found = afresh ? found.lines : [...this.#found, ...found.lines]
    this.#cursor = found.cursor
    this.#onChange()
  }

  #get(query: Query, signal: AbortSignal): Promise<List<LineSummary>> {
    return get<List<LineSummary>>(this.#path, query, { signal })
  }

  /** One question at a time about each page. */
  async #ask<T>(page: number, ask: (signal: AbortSignal) => Promise<T>): Promise<T | null> {
    if (this.#asked.has(page)) return null
    const abort = new AbortController()
    this.#asked.set(page, abort)
    try {
      const answer = await ask(abort.signal)
      this.failed = null
      return answer
    } catch (error) {
      if (!abort.signal.aborted) {
        this.failed = error
        this.#onChange()
      }
      return null
    } finally {
      this.#asked.delete(page)
    }
  }
}

/** Result lines behind line `after`; while the batch runs, those before the first that is not finished. */
export async function readResults(
  batchId: string,
  { after, limit }: { after: string; limit: number },
  signal: AbortSignal,
): Promise<{ lines: string[]; next: string | null }> {
  const path = pathWith(`/v1/batches/${encodeURIComponent(batchId)}/results`, {
    after,
    limit,
    contiguous: true,
  })
  const response = await fetchApi('GET', path, undefined, { signal })
  const lines = (await response.text()).split('\n').filter((line) => line !== '')
  const { headers } = response
  return { lines, next: headers.get('x-has-more') === 'true' ? headers.get('x-next-after') : null }
}
