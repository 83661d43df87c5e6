// The sessions and links of a key, the oldest first.
import type { Kysely } from 'kysely'
import { index } from './columns.ts'

export const sessionsOfKeys = {
  async up(db: Kysely<unknown>): Promise<void> {
    await index(db, 'console_sessions_of_key', 'console_sessions', 'key_id, kind, created')
  },
}
