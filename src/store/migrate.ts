// Brings a database to this program's schema. Migrations are the same code for every database, but for what one of
// them can do and another cannot.
import type { Kysely } from 'kysely'
import { type Migration, Migrator } from 'kysely/migration'
import { start } from './migrations/0001-start.ts'
import { ledger } from './migrations/0002-ledger.ts'
import { notices } from './migrations/0003-notices.ts'
import { marks } from './migrations/0004-marks.ts'
import { progress } from './migrations/0005-progress.ts'
import { rateWindows } from './migrations/0006-rate-windows.ts'
import { requestMonths } from './migrations/0007-request-months.ts'
import { unsealed } from './migrations/0008-unsealed.ts'
import { entities } from './migrations/0009-entities.ts'
import { journalSums } from './migrations/0010-journal-sums.ts'
import { commitSequence } from './migrations/0011-commit-sequence.ts'
import { upstreamErrors } from './migrations/0012-upstream-errors.ts'
import { fairPreparation } from './migrations/0014-fair-preparation.ts'
import { seenPrompts } from './migrations/0015-seen-prompts.ts'
import { callers } from './migrations/0016-callers.ts'
import { secrets } from './migrations/0017-secrets.ts'
import type { Schema } from './schema.ts'
import { SchemaMismatch } from './store.ts'

/** What a migration does in one database only. */
export interface OwnSteps {
  partitionHttpRequests: ((db: Kysely<unknown>) => Promise<void>) | null
}

const migrations = ({ partitionHttpRequests }: OwnSteps): Record<string, Migration> => ({
  '0001-start': start,
  '0002-ledger': ledger,
  '0003-notices': notices,
  '0004-marks': marks,
  '0005-progress': progress,
  '0006-rate-windows': rateWindows,
  '0007-request-months': requestMonths(partitionHttpRequests),
  '0008-unsealed': unsealed,
  '0009-entities': entities,
  '0010-journal-sums': journalSums,
  '0011-commit-sequence': commitSequence,
  '0012-upstream-errors': upstreamErrors,
  '0014-fair-preparation': fairPreparation,
  '0015-seen-prompts': seenPrompts,
  '0016-callers': callers,
  '0017-secrets': secrets,
})

/**
 * Runs what is missing, under the database's own migration lock, and resolves to how many migrations that were.
 * Throws SchemaMismatch for a newer schema.
 */
export async function migrateToLatest(db: Kysely<Schema>, own: OwnSteps): Promise<number> {
  const migrator = new Migrator({ db, provider: { getMigrations: async () => migrations(own) } })
  const { error, results = [] } = await migrator.migrateToLatest()
  if (error === undefined) return results.length
  const text = error instanceof Error ? error.message : String(error)
  if (text.includes('corrupted migrations'))
    throw new SchemaMismatch(`This database has a schema that this program does not know (${text}).`)
  throw error
}
