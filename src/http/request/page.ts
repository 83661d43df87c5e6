// Reads one page of a list. The cursor is the ID of an object that the caller can see, so that a page neither skips nor
// repeats objects when others are created or deleted meanwhile. One call reads a bounded number of rows: a page may
// have fewer objects than `limit`, even none, although the list continues.
import { ApiError } from '../../domain/errors.ts'
import type { Listed, Page } from '../../store/page.ts'
import { type List, PAGE_LIMIT_DEFAULT, type PageQuery } from '../../wire/list.ts'

interface PageSource<Row, Item> {
  /** The ID that a cursor stands for, if not itself. */
  idOf?: (cursor: string) => string
  /** The object that a cursor names, where the caller can see it. */
  find(id: string): Promise<object | undefined>
  list(page: Page): Promise<Listed<Row>>
  show(row: Row): Item
  /** Where the list goes on behind a row, if not its ID. */
  cursor?: (row: Row) => string
}

/** Throws cursor_not_found. */
export async function readPage<Row, Item extends { id: string }>(
  { limit = PAGE_LIMIT_DEFAULT, order = 'desc', after, starting_after }: PageQuery,
  source: PageSource<Row, Item>,
): Promise<List<Item>> {
  const cursor = after ?? starting_after
  const behind = cursor && (source.idOf?.(cursor) ?? cursor)
  if (behind !== undefined && !(await source.find(behind)))
    throw new ApiError('cursor_not_found', undefined, {
      param: after === undefined ? 'starting_after' : 'after',
    })
  // One more than requested, to know whether there are more.
  const { rows, lookedTo } = await source.list({ limit: limit + 1, order, behind })
  const data = rows.slice(0, limit).map((row) => source.show(row))
  const last = rows[data.length - 1]
  const goesOn = rows.length > limit && last !== undefined
  return pageOf(data, goesOn ? (source.cursor?.(last) ?? data.at(-1)?.id ?? null) : lookedTo)
}

/** `next_cursor`: where the next page begins; null on the last. */
export function pageOf<Item extends { id: string }>(data: Item[], next_cursor: string | null): List<Item> {
  return {
    object: 'list',
    data,
    has_more: next_cursor !== null,
    next_cursor,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
  }
}
