// The same batch APIs, on PostgreSQL and a bucket.
import { after, test } from 'node:test'
import { withoutPostgres } from './fakes/postgres-server.ts'
import { sharedStorage } from './fakes/shared-storage.ts'
import { TestService } from './service.ts'

if (withoutPostgres) test('batch APIs with PostgreSQL and a bucket', { skip: withoutPostgres }, () => {})
else {
  const storage = await sharedStorage()
  after(() => storage[Symbol.asyncDispose]())
  TestService.storage = () => storage.make()
  await import('./remote-batches.long.test.ts')
  await import('./remote-webhooks.long.test.ts')
  await import('./remote-batches.test.ts')
}
