// Upgrading without a stop: processes of an earlier version go on working on a database that a newer one has brought
// up to date, beside processes of the newer one, until they are stopped; they do not start on it again.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, describe, test } from 'node:test'
import { withoutPostgres } from './fakes/postgres-server.ts'
import { type SharedStorage, sharedStorage } from './fakes/shared-storage.ts'
import { CrashTest, until } from './support/crash-processes.ts'
import { extract, versionAt } from './support/earlier-version.ts'

/** The first schema of which there are releases: earlier versions must go on working on every later one. */
const SCHEMA = '0003'
const COUNT = 40
const FIRST = 12

const earlier = versionAt(SCHEMA)
const skip = 'missing' in earlier && earlier.missing

async function run(crash: CrashTest, ...args: string[]): Promise<{ code: number | null; said: string }> {
  const child = crash.launch([...args, '--data', 'data', '--config', 'offpeak.yaml'])
  const said = Promise.all([text(child.stdout!), text(child.stderr!)])
  const [code] = await once(child, 'close')
  return { code, said: (await said).join('') }
}

async function upgradedAtWork(): Promise<void> {
  assert('commit' in earlier)
  await using crash = await CrashTest.begin()
  const newest = crash.main
  crash.main = extract(earlier.commit, join(crash.folder, 'earlier'))
  const old = await crash.start('serve')
  crash.blockUnless((content) => Number(content.slice(1)) < FIRST)
  const { id } = await crash.batchOf(COUNT)
  await crash.committed(id, FIRST)
  await until(() => crash.held.length === COUNT - FIRST)

  crash.main = newest
  const migrated = await run(crash, 'keys', 'list')
  assert.equal(migrated.code, 0, migrated.said)
  crash.answerAll()
  await crash.checkResults(await crash.completed(id), COUNT)
  assert.equal(crash.sent(1).length, COUNT, 'no line is sent twice')

  // Everything from the upload on, by the earlier version alone, and then beside a worker of the newest.
  await crash.checkResults(await crash.completed((await crash.batchOf(COUNT)).id), COUNT)
  const worker = await crash.start('worker')
  for (let i = 0; i < 3; i++)
    await crash.checkResults(await crash.completed((await crash.batchOf(COUNT)).id), COUNT)
  assert.equal(await worker.end('SIGTERM'), 0, worker.log())
  assert.equal(await old.end('SIGTERM'), 0, old.log())
  assert.doesNotMatch(old.log(), /"level":50/)

  crash.main = join(crash.folder, 'earlier', 'bin/offpeak.js')
  await assert.rejects(crash.start('serve'), /This database has a schema that this program does not know/)
  crash.main = newest
  const books = await run(crash, 'doctor', 'books')
  assert.equal(books.code, 0, books.said)
  const next = await crash.start('serve')
  await crash.checkResults(await crash.completed((await crash.batchOf(COUNT)).id), COUNT)
  await crash.checkResults(await crash.batch(id), COUNT)
  assert.equal(await next.end('SIGTERM'), 0, next.log())
  assert.ok((await readFile(join(crash.folder, 'data/api-key'), 'utf8')).startsWith('opk_'))
}

describe('an earlier version on the newest schema', { skip, timeout: 300_000 }, () => {
  test(
    'goes on with its batch and takes new ones, and does not start again: SQLite',
    { timeout: 150_000 },
    upgradedAtWork,
  )

  test('the same on PostgreSQL and a bucket', { skip: withoutPostgres, timeout: 150_000 }, async () => {
    const storage: SharedStorage = await sharedStorage()
    after(() => storage[Symbol.asyncDispose]())
    CrashTest.storage = () => storage.make()
    await upgradedAtWork()
  })
})
