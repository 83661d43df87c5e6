// What the console asks of the API, on PostgreSQL and a bucket.
import { after, test } from 'node:test'
import { withoutPostgres } from './fakes/postgres-server.ts'
import { sharedStorage } from './fakes/shared-storage.ts'
import { TestService } from './service.ts'

if (withoutPostgres)
  test('the API of the console on PostgreSQL and a bucket', { skip: withoutPostgres }, () => {})
else {
  const storage = await sharedStorage()
  after(() => storage[Symbol.asyncDispose]())
  TestService.storage = () => storage.make()
  await import('./batch-lines.test.ts')
  await import('./batch-statistics.test.ts')
  await import('./cli-console.test.ts')
  await import('./live.test.ts')
  await import('./retry-batch.test.ts')
}
