// Parts of statements that the queries of many tables have.
//
// Sums of counts stop at the largest exact one (domain/spend.ts), in every database: no sum overflows,
// none comes back as a number that JavaScript cannot hold, and so no check and no commit fails for its size.
import { type RawBuilder, sql } from 'kysely'
import { COUNT_MAX } from '../domain/spend.ts'

/** Over the rows of a group, as a JavaScript number. */
export function exactSum(column: string): RawBuilder<number> {
  const sum = sql<number>`coalesce(sum(cast(${sql.ref(column)} as double precision)), 0)`
  return sql<number>`CASE WHEN ${sum} > ${MAX} THEN ${MAX} ELSE ${sum} END`
}

/** A column and what is added to it, or taken from it: the result is never below 0. */
export function exactPlus(column: string, by: number | RawBuilder<number>): RawBuilder<number> {
  const sum = sql<number>`${sql.ref(column)} + ${by}`
  return sql<number>`CASE WHEN ${sum} > ${MAX} THEN ${MAX} WHEN ${sum} < 0 THEN 0 ELSE ${sum} END`
}

/** In an upsert: a column and the value that was to be inserted. */
export function exactPlusExcluded(table: string, column: string): RawBuilder<number> {
  return exactPlus(`${table}.${column}`, sql<number>`${sql.ref(`excluded.${column}`)}`)
}

const MAX = sql.lit(COUNT_MAX)

/** Bound parameters are limited. */
const SLICE = 500

/** As many rows or names at a time as one statement takes. */
export function* slices<T>(all: readonly T[]): Generator<readonly T[]> {
  for (let at = 0; at < all.length; at += SLICE) yield all.slice(at, at + SLICE)
}

/** One condition for each word of `text`: that it occurs in one of the columns, in any case. */
export function wordsIn(columns: readonly string[], text = ''): RawBuilder<boolean>[] {
  const values = columns.map((name) => sql`coalesce(${sql.ref(name)}, '')`)
  const all = sql`lower(${sql.join(values, sql` || ' ' || `)})`
  return (text.toLowerCase().match(/\S+/g) ?? []).map((word) => {
    // In JSON, some characters are escaped.
    const forms = [...new Set([word, JSON.stringify(word).slice(1, -1)])].map((form) => {
      const pattern = `%${form.replace(/[\\%_]/g, '\\$&')}%`
      return sql`${all} LIKE ${pattern} ESCAPE '\\'`
    })
    return sql<boolean>`(${sql.join(forms, sql` OR `)})`
  })
}
