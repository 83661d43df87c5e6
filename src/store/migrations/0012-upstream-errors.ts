// What servers said last to the batches whose lines they fail, and how long a worker's lease is, which tells when it
// was renewed.
import type { Kysely } from 'kysely'

export const upstreamErrors = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('lane_reports').addColumn('details', 'text').execute()
    await db.schema.alterTable('workers').addColumn('lease_ms', 'bigint').execute()
  },
}
