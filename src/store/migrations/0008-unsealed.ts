// What is left of a batch, found without reading what is done of it: a batch of ten million lines has ten thousand
// chunks, and who asks why it waits, or for its results so far, asks every few seconds.
import { type Kysely, sql } from 'kysely'

export const unsealed = {
  async up(db: Kysely<unknown>): Promise<void> {
    await sql`CREATE INDEX chunks_unsealed ON chunks (batch_id, idx) WHERE state <> 'sealed'`.execute(db)
  },
}
