// What the lines of a journal came to, so that it can be taken back should the journal be lost.
import type { Kysely } from 'kysely'

export const journalSums = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('journal_parts').addColumn('sums', 'text').execute()
  },
}
