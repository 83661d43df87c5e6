// A page of a list: IDs sort by time, so they order it and mark where the next page begins.
import { type ReferenceExpression, type SelectQueryBuilder, sql } from 'kysely'

export interface Page {
  limit: number
  /** `desc`, newest first, if not given. */
  order?: 'asc' | 'desc'
  /** Only what follows the object with this ID, in that order. */
  behind?: string | undefined
}

export function onPage<DB, TB extends keyof DB, O>(
  query: SelectQueryBuilder<DB, TB, O>,
  id: ReferenceExpression<DB, TB> & string,
  { limit, order = 'desc', behind }: Page,
): SelectQueryBuilder<DB, TB, O> {
  const page = query.orderBy(sql.ref(id), order).limit(limit)
  return behind === undefined ? page : page.where(sql.ref(id), order === 'asc' ? '>' : '<', behind)
}
