// Runs the suites of other files on PostgreSQL and a bucket instead of SQLite and a folder.
import { after, test } from 'node:test'
import { withoutPostgres } from '../fakes/postgres-server.ts'
import { type SharedStorage, sharedStorage } from '../fakes/shared-storage.ts'
import { TestService } from '../service.ts'
import { CrashTest } from './crash-processes.ts'

/** `suites` are test files below `test`, without their ending. One server of each serves all of them: a service has a
 * database and a prefix of its own. Resolves to null where PostgreSQL is not installed. */
export async function runOnPostgres(suites: readonly string[]): Promise<SharedStorage | null> {
  if (withoutPostgres) {
    test('the suites on PostgreSQL and a bucket', { skip: withoutPostgres }, () => {})
    return null
  }
  const storage = await sharedStorage()
  after(() => storage[Symbol.asyncDispose]())
  TestService.storage = () => storage.make()
  CrashTest.storage = () => storage.make()
  for (const suite of suites) await import(`../${suite}.test.ts`)
  return storage
}
