// The same crashes, and caps among processes, on PostgreSQL and a bucket.
import { after, test } from 'node:test'
import { CrashTest } from './crash-processes.ts'
import { withoutPostgres } from './fakes/postgres-server.ts'
import { sharedStorage } from './fakes/shared-storage.ts'

if (withoutPostgres) test('crashes on PostgreSQL and a bucket', { skip: withoutPostgres }, () => {})
else {
  const storage = await sharedStorage()
  after(() => storage[Symbol.asyncDispose]())
  CrashTest.storage = () => storage.make()
  await import('./crash.test.ts')
  await import('./limits-processes.test.ts')
}
