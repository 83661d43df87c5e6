// Brings a database to this program's schema. Migrations are the same code for every database, except that PostgreSQL
// divides the records of HTTP calls by the month.
import type { Kysely } from 'kysely'
import { type Migration, Migrator } from 'kysely/migration'
import { batches } from './migrations/0001-batches.ts'
import { limits } from './migrations/0002-limits.ts'
import { calls } from './migrations/0003-calls.ts'
import {
  capacity,
  console,
  dedupe,
  openaiClients,
  remoteBatches,
  traces,
  usageDetails,
} from './migrations/0004-0010.ts'
import {
  batchNames,
  chargedDays,
  firstLines,
  listIndexes,
  remoteLooks,
  sessionsOfKeys,
  sharedLines,
  uploadCompletions,
} from './migrations/0011-0018.ts'
import type { Schema } from './schema.ts'
import { SchemaMismatch } from './store.ts'

/** The first migration of the schema that was used before any version was released. */
const UNRELEASED = '0001-start'

interface MigrationOptions {
  /** Whether `http_requests` is divided by the month. */
  partitioned: boolean
}

const migrations = ({ partitioned }: MigrationOptions): Record<string, Migration> => ({
  '0001-batches': batches,
  '0002-limits': limits,
  '0003-calls': calls(partitioned),
  '0004-dedupe': dedupe,
  '0005-openai-clients': openaiClients,
  '0006-console': console,
  '0007-capacity': capacity,
  '0008-remote-batches': remoteBatches,
  '0009-usage-details': usageDetails,
  '0010-traces': traces,
  '0011-remote-looks': remoteLooks,
  '0012-first-lines': firstLines,
  '0013-charged-days': chargedDays,
  '0014-list-indexes': listIndexes,
  '0015-upload-completions': uploadCompletions,
  '0016-sessions-of-keys': sessionsOfKeys,
  '0017-shared-lines': sharedLines,
  '0018-batch-names': batchNames,
})

/** Runs the missing migrations under the database's own migration lock. Throws SchemaMismatch for any other schema. */
export async function migrateToLatest(db: Kysely<Schema>, options: MigrationOptions): Promise<void> {
  const migrator = new Migrator({ db, provider: { getMigrations: async () => migrations(options) } })
  const { error } = await migrator.migrateToLatest()
  if (error === undefined) return
  const text = error instanceof Error ? error.message : String(error)
  if (text.includes(`${UNRELEASED} is missing`))
    throw new SchemaMismatch(
      'This database was created by a development version of offpeak, before the first release. Its tables have other names now, and there is no migration.',
      'Start with an empty database: another --data folder, or a new PostgreSQL database and bucket prefix. To keep results, download them first with the version that created the database.',
    )
  if (text.includes('corrupted migrations'))
    throw new SchemaMismatch(
      `This database has a schema that this program does not know (${text}).`,
      'Run the version of offpeak that wrote this database, or restore a backup.',
    )
  throw error
}
