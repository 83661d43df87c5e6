// A page of a list: IDs sort by time, so they order it and mark where the next page begins. One page costs little
// however long the list is: its conditions are searched by index, or so many rows are looked at and no more.
import { type ReferenceExpression, type SelectQueryBuilder, sql } from 'kysely'

/** About 7 ms in SQLite, which runs in the thread of the API. */
export const ROWS_LOOKED_AT_MAX = 5_000

export interface Page {
  limit: number
  /** `desc`, newest first, if not given. */
  order?: 'asc' | 'desc'
  /** Only what follows the object with this ID, in that order. */
  behind?: string | undefined
}

export interface Listed<Row> {
  rows: Row[]
  /** Set where fewer rows than `limit` matched among those that were looked at: the list goes on behind this ID. */
  lookedTo: string | null
}

/** `query` has conditions that an index serves in the order of `id`, and no others. */
export async function listed<DB, TB extends keyof DB, O>(
  query: SelectQueryBuilder<DB, TB, O>,
  id: ReferenceExpression<DB, TB> & string,
  page: Page,
): Promise<Listed<O>> {
  return { rows: await onPage(query, id, page).execute(), lookedTo: null }
}

/** The same for those rows of `query` that pass `filter`, which no index serves. */
export async function listedWhere<DB, TB extends keyof DB, O>(
  query: SelectQueryBuilder<DB, TB, O>,
  id: ReferenceExpression<DB, TB> & string,
  page: Page,
  filter: (query: SelectQueryBuilder<DB, TB, O>) => SelectQueryBuilder<DB, TB, O>,
): Promise<Listed<O>> {
  const ids = query.clearSelect().select(sql.ref(id).as('last')).$castTo<{ last: string }>()
  const [end] = await onPage(ids, id, { ...page, limit: 1 })
    .offset(ROWS_LOOKED_AT_MAX - 1)
    .execute()
  const some = end ? query.where(sql.ref(id), page.order === 'asc' ? '<=' : '>=', end.last) : query
  const rows = await onPage(filter(some), id, page).execute()
  return { rows, lookedTo: end && rows.length < page.limit ? end.last : null }
}

function onPage<DB, TB extends keyof DB, O>(
  query: SelectQueryBuilder<DB, TB, O>,
  id: ReferenceExpression<DB, TB> & string,
  { limit, order = 'desc', behind }: Page,
): SelectQueryBuilder<DB, TB, O> {
  const page = query.orderBy(sql.ref(id), order).limit(limit)
  return behind === undefined ? page : page.where(sql.ref(id), order === 'asc' ? '>' : '<', behind)
}
