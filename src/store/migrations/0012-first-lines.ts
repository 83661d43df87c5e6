// Which lines of a chunk ask what an earlier line of their batch asks (jsonl/first-lines.ts).
import type { Kysely } from 'kysely'

export const firstLines = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('chunks').addColumn('first_lines', 'text').execute()
  },
}
