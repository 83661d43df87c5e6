// Sums of whole numbers that come back as JavaScript numbers from every database: exact below 2^53, and
// never an overflow that would make a check fail to run.
import { type RawBuilder, sql } from 'kysely'

export function exactSum(column: string): RawBuilder<number> {
  return sql<number>`coalesce(sum(cast(${sql.ref(column)} as double precision)), 0)`
}
