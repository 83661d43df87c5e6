// Records of HTTP calls by the month, where the database can drop a month as a whole; elsewhere nothing changes.
import type { Kysely } from 'kysely'

/** `divide` makes of the table that there is one that is kept by the month, with every row it has. */
export function requestMonths(divide: ((db: Kysely<unknown>) => Promise<void>) | null) {
  return {
    async up(db: Kysely<unknown>): Promise<void> {
      await divide?.(db)
    },
  }
}
