// Pages of a list: IDs sort by time, so they order it and mark the next page's beginning. One page costs little however
// long the list is: its conditions are searched by index, or the number of examined rows is bounded.
import { type RawBuilder, type ReferenceExpression, type SelectQueryBuilder, sql } from 'kysely'

/** The limit of examined rows, some 7 ms in SQLite, which runs in the thread of the API. */
export const ROWS_LOOKED_AT_MAX = 5_000

export interface Page {
  limit: number
  /** The order of IDs; `desc`, newest first, by default. */
  order?: 'asc' | 'desc'
  /** The ID after which the page begins, in the page's order. */
  behind?: string | undefined
  /** A column that precedes the ID in the order, and its value where the page begins. */
  by?: { column: string; value: string | number | undefined }
}

/** The cursor of a list that is ordered by a column: an ID, and the value that the column had. */
export function cursorAt(id: string, value: string | number): string {
  return `${id}:${value}`
}

export function cursorId<T extends string | undefined>(cursor: T): T
export function cursorId(cursor: string | undefined): string | undefined {
  return cursor?.split(':')[0]
}

export interface Listed<Row> {
  rows: Row[]
  /** The cursor after the last examined row, if there are fewer than `limit` matches but more rows; else null. */
  lookedTo: string | null
}

/**
 * A page of a list. `query` has only conditions that an index serves in the order of `id`; the others are in `filter`,
 * where `false` stands for an absent one.
 */
export async function listed<DB, TB extends keyof DB, O>(
  query: SelectQueryBuilder<DB, TB, O>,
  id: ReferenceExpression<DB, TB> & string,
  page: Page,
  filter: readonly (RawBuilder<boolean> | false)[] = [],
): Promise<Listed<O>> {
  const conditions = filter.filter((one) => one !== false)
  if (conditions.length === 0) return { rows: await onPage(query, id, page).execute(), lookedTo: null }
  const { by } = page
  const places = query
    .clearSelect()
    .select([sql.ref(id).as('last'), sql.ref(by?.column ?? id).as('value')])
    .$castTo<{ last: string; value: string | number }>()
  const [end] = await onPage(places, id, { ...page, limit: 1 })
    .offset(ROWS_LOOKED_AT_MAX - 1)
    .execute()
  const some = end ? query.where(onSide(id, page, page.order === 'asc' ? '<=' : '>=', end)) : query
  const filtered = conditions.reduce((those, condition) => those.where(condition), some)
  const rows = await onPage(filtered, id, page).execute()
  if (!end || rows.length === page.limit) return { rows, lookedTo: null }
  return { rows, lookedTo: by ? cursorAt(end.last, end.value) : end.last }
}

function onPage<DB, TB extends keyof DB, O>(
  query: SelectQueryBuilder<DB, TB, O>,
  id: ReferenceExpression<DB, TB> & string,
  page: Page,
): SelectQueryBuilder<DB, TB, O> {
  const { limit, order = 'desc', behind, by } = page
  const sorted = by ? query.orderBy(sql.ref(by.column), order) : query
  const some = sorted.orderBy(sql.ref(id), order).limit(limit)
  if (behind === undefined) return some
  return some.where(onSide(id, page, order === 'asc' ? '>' : '<', { last: behind, value: by?.value ?? '' }))
}

/** The condition for the rows on one side of a row. */
function onSide(
  id: string,
  { by }: Page,
  operator: '<' | '<=' | '>' | '>=',
  { last, value }: { last: string; value: string | number },
): RawBuilder<boolean> {
  if (!by) return sql<boolean>`${sql.ref(id)} ${sql.raw(operator)} ${last}`
  return sql<boolean>`(${sql.ref(by.column)}, ${sql.ref(id)}) ${sql.raw(operator)} (${value}, ${last})`
}

/** All rows in pages of `limit`: `read` returns the rows after a given one. The last page may be empty. */
export async function* pagesOf<Row>(
  limit: number,
  read: (last: Row | undefined) => Promise<Row[]>,
): AsyncGenerator<Row[], void, undefined> {
  for (let last: Row | undefined, more = true; more; ) {
    const rows = await read(last)
    yield rows
    last = rows.at(-1)
    more = rows.length === limit
  }
}

/** The ID of a position after all rows of a millisecond. */
export const LAST_OF_MS = 'z'

/** A position in the audit log: the time of an answer or a sealing (Unix ms), and the ID of the call or line. */
export interface AuditPosition {
  at: number
  id: string
}

/** The part of the audit log that one query reads: at most `limit` rows after `after` and before `until`. */
export interface AuditWindow {
  /** The project of the rows; null: all projects. */
  project_id: string | null
  after: AuditPosition
  /** The end of the window, Unix ms. */
  until: number
  limit: number
}

/**
 * The rows of a window by their place, columns of which the first is a time, from `begin` on. `end`: the last examined row
 * if rows may follow it.
 */
export async function rowsInWindow<DB, TB extends keyof DB, O, C extends keyof O & string>(
  all: SelectQueryBuilder<DB, TB, O>,
  place: readonly [time: C, ...C[]],
  begin: { operator: '>' | '>='; at: readonly (string | number)[] },
  { project_id, until, limit }: AuditWindow,
): Promise<{ rows: O[]; end: Pick<O, C> | undefined }> {
  const columns = sql`(${sql.join(place.map((column) => sql.ref(column)))})`
  let some = all
    .where(sql<boolean>`${columns} ${sql.raw(begin.operator)} (${sql.join(begin.at)})`)
    .where(sql<boolean>`${sql.ref(place[0])} < ${until}`)
  for (const column of place) some = some.orderBy(sql.ref(column))
  const last = await some
    .clearSelect()
    .select(place.map((column) => sql.ref(column).as(column)))
    .$castTo<Pick<O, C>>()
    .offset(ROWS_LOOKED_AT_MAX - 1)
    .limit(1)
    .executeTakeFirst()
  if (last) some = some.where(sql<boolean>`${columns} <= (${sql.join(place.map((column) => last[column]))})`)
  if (project_id !== null) some = some.where(sql<boolean>`project_id = ${project_id}`)
  const rows = await some.limit(limit).execute()
  return { rows, end: rows.length === limit ? rows.at(-1) : last }
}
