// The suites of other files once more, on PostgreSQL and a bucket instead of SQLite and a folder; and what only
// PostgreSQL can show. One server of each serves all of them: a service has a database and a prefix of its own.
import { after, test } from 'node:test'
import { postgresStore } from '../../src/store/postgres/store.ts'
import { withoutPostgres } from '../fakes/postgres-server.ts'
import { type SharedStorage, sharedStorage } from '../fakes/shared-storage.ts'
import { TestService } from '../service.ts'
import { checkLists } from '../support/check-lists.ts'
import { CrashTest } from '../support/crash-processes.ts'

const SUITES = [
  ...['batches/batch-life', 'batches/batch-lines', 'batches/batch-statistics', 'batches/buckets'],
  ...[
    'batches/fairness.long',
    'batches/retry-batch',
    'cli/cli-console',
    'damage/crash.long',
    'files/unstorable-text',
  ],
  ...['money/limits', 'money/limits-processes.long', 'operations/live', 'operations/webhooks'],
  ...['remote-batches/remote-batches', 'remote-batches/remote-batches.long'],
  'remote-batches/remote-webhooks.long',
  'dispatch/capacity',
]

/** Tables of a test are small: a scan or a sort would be the quickest way, and is taken only where there is no other. */
const INDEXES_ONLY = ['enable_seqscan', 'enable_bitmapscan', 'enable_sort'].map((name) => `-c ${name}=off`)

if (withoutPostgres) test('the suites on PostgreSQL and a bucket', { skip: withoutPostgres }, () => {})
else {
  const storage = await sharedStorage()
  after(() => storage[Symbol.asyncDispose]())
  await runSuites(storage)
}

async function runSuites(storage: SharedStorage): Promise<void> {
  TestService.storage = () => storage.make()
  CrashTest.storage = () => storage.make()
  for (const suite of SUITES) await import(`../${suite}.test.ts`)
  test('no list of PostgreSQL scans or sorts a table, whatever it is filtered by', async () => {
    const url = new URL(await storage.postgres.database())
    url.searchParams.set('options', INDEXES_ONLY.join(' '))
    await checkLists(postgresStore({ url: url.href }))
  })
}
