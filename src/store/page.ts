// A page of a list: IDs sort by time, so they order it and mark where the next page begins. One page costs little
// however long the list is: its conditions are searched by index, or so many rows are looked at and no more.
import { type RawBuilder, type ReferenceExpression, type SelectQueryBuilder, sql } from 'kysely'

/** About 7 ms in SQLite, which runs in the thread of the API. */
export const ROWS_LOOKED_AT_MAX = 5_000

export interface Page {
  limit: number
  /** `desc`, newest first, if not given. */
  order?: 'asc' | 'desc'
  /** Only what follows the object with this ID, in that order. */
  behind?: string | undefined
  /** A column that comes before the ID in the order, and its value where the page begins. */
  by?: { column: string; value: string | number | undefined }
}

/** Where a list in the order of a column goes on: an ID, and the value that the column had. */
export function cursorAt(id: string, value: string | number): string {
  return `${id}:${value}`
}

export function cursorId<T extends string | undefined>(cursor: T): T
export function cursorId(cursor: string | undefined): string | undefined {
  return cursor?.split(':')[0]
}

export interface Listed<Row> {
  rows: Row[]
  /** Set where fewer rows than `limit` matched among those that were looked at: the list goes on behind this cursor. */
  lookedTo: string | null
}

/**
 * `query` has conditions that an index serves in the order of `id`, and no others; those that none serves are in `filter`,
 * where one that is false does not apply.
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
  const some = end ? query.where(beside(id, page, page.order === 'asc' ? '<=' : '>=', end)) : query
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
  return some.where(beside(id, page, order === 'asc' ? '>' : '<', { last: behind, value: by?.value ?? '' }))
}

/** On which side of a row others lie. */
function beside(
  id: string,
  { by }: Page,
  operator: '<' | '<=' | '>' | '>=',
  { last, value }: { last: string; value: string | number },
): RawBuilder<boolean> {
  if (!by) return sql<boolean>`${sql.ref(id)} ${sql.raw(operator)} ${last}`
  return sql<boolean>`(${sql.ref(by.column)}, ${sql.ref(id)}) ${sql.raw(operator)} (${value}, ${last})`
}

/** All rows in pages of `limit`: `read` reads the rows behind one, or the first ones. The last page may be empty. */
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

/** In place of the ID: behind all of that millisecond. */
export const LAST_OF_MS = 'z'

/** A place in the audit log: when a call was answered or a chunk sealed (Unix ms), and the ID of the call or line. */
export interface AuditPosition {
  at: number
  id: string
}

/** The part of the audit log that one query reads: at most `limit` rows behind `after` and before `until`. */
export interface AuditWindow {
  /** Null: of all projects. */
  project_id: string | null
  after: AuditPosition
  /** Unix ms. */
  until: number
  limit: number
}

/** `end`: the last place that was looked at, where there may be more behind it; else null. */
export interface AuditRows<Row> {
  rows: Row[]
  end: AuditPosition | null
}
