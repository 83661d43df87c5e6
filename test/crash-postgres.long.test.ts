// The same crashes, and caps among processes, on PostgreSQL and a bucket.
import { after, test } from 'node:test'
import { withoutPostgres } from './fakes/postgres-server.ts'
import { sharedStorage } from './fakes/shared-storage.ts'
import { CrashTest } from './support/crash-processes.ts'

if (withoutPostgres) test('crashes on PostgreSQL and a bucket', { skip: withoutPostgres }, () => {})
else {
  const storage = await sharedStorage()
  after(() => storage[Symbol.asyncDispose]())
  CrashTest.storage = () => storage.make()
  await import('./crash.long.test.ts')
  await import('./limits-processes.long.test.ts')
}
