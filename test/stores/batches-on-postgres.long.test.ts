// What a batch goes through, and what is told of it, on PostgreSQL and a bucket; and what only PostgreSQL can show.
import { test } from 'node:test'
import { postgresStore } from '../../src/store/postgres/store.ts'
import { checkLists } from '../support/check-lists.ts'
import { runOnPostgres } from '../support/on-postgres.ts'

/** Tables of a test are small: a scan or a sort would be the quickest way, and is taken only where there is no other. */
const INDEXES_ONLY = ['enable_seqscan', 'enable_bitmapscan', 'enable_sort'].map((name) => `-c ${name}=off`)

const storage = await runOnPostgres([
  ...['batches/batch-life', 'batches/batch-lines', 'batches/batch-statistics', 'batches/buckets'],
  ...['batches/fairness.long', 'batches/retry-batch', 'cli/cli-console', 'files/unstorable-text'],
  ...['operations/audit-export', 'operations/live', 'operations/webhooks'],
])

if (storage)
  test('no list of PostgreSQL scans or sorts a table, whatever it is filtered by', async () => {
    const url = new URL(await storage.postgres.database())
    url.searchParams.set('options', INDEXES_ONLY.join(' '))
    await checkLists(postgresStore({ url: url.href }))
  })
