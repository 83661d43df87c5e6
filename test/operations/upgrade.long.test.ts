// Upgrading without a stop: processes of the previous release go on working on a database that this version has brought
// up to date, beside processes of this version, until they are stopped; they do not start on it again.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { text } from 'node:stream/consumers'
import { after, describe, test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import { withoutPostgres } from '../fakes/postgres-server.ts'
import { type SharedStorage, sharedStorage } from '../fakes/shared-storage.ts'
import { CrashTest } from '../support/crash-processes.ts'
import { install, previousRelease } from '../support/previous-release.ts'

const COUNT = 40
const FIRST = 12

const earlier = previousRelease()
const skip = 'missing' in earlier && earlier.missing

async function run(crash: CrashTest, ...args: string[]): Promise<{ code: number | null; said: string }> {
  const child = crash.launch([...args, '--data', 'data', '--config', 'offpeak.yaml'])
  const said = Promise.all([text(child.stdout!), text(child.stderr!)])
  const [code] = await once(child, 'close')
  return { code, said: (await said).join('') }
}

interface Column {
  table: string
  column: string
  type: string
  required: number
  default: string | null
}

/** Of the database in the test's folder; none where the test uses PostgreSQL, whose migrations are the same code. */
function columns(crash: CrashTest): Column[] {
  const path = join(crash.folder, 'data/offpeak.db')
  if (!existsSync(path)) return []
  using database = new DatabaseSync(path, { readOnly: true })
  const rows = database.prepare(
    `SELECT t.name AS "table", c.name AS "column", c.type, c."notnull" AS required, c.dflt_value AS "default"
     FROM sqlite_schema t, pragma_table_info(t.name) c WHERE t.type = 'table'`,
  )
  return rows.all() as unknown as Column[]
}

/** What was there is there as it was, and a row that names no new column is still complete. */
function assertAdditive(before: Column[], after: Column[]): void {
  const tables = new Set(before.map(({ table }) => table))
  assert.deepEqual(
    before.filter((was) => !after.some((is) => isDeepStrictEqual(is, was))),
    [],
  )
  const added = after.filter(
    ({ table, column }) =>
      tables.has(table) && !before.some((was) => was.table === table && was.column === column),
  )
  assert.deepEqual(
    added.filter((column) => column.required === 1 && column.default === null),
    [],
  )
}

async function upgradedAtWork(): Promise<void> {
  assert.ok('commit' in earlier)
  // No worker is killed, so no lease has to expire soon.
  await using crash = await CrashTest.begin('', '1s', '10s')
  const newest = crash.main
  const released = install(earlier, join(crash.folder, 'earlier'))
  crash.main = released
  const old = await crash.start('serve')
  crash.blockUnless((content) => Number(content.slice(1)) < FIRST)
  const { id } = await crash.batchOf(COUNT)
  await crash.committed(id, FIRST)
  await crash.holds(COUNT - FIRST)

  const before = columns(crash)
  crash.main = newest
  const migrated = await run(crash, 'keys', 'list')
  assert.equal(migrated.code, 0, migrated.said)
  assertAdditive(before, columns(crash))
  crash.answerAll()
  await crash.checkResults(await crash.completed(id), COUNT)
  assert.equal(crash.sent(1).length, COUNT, 'no line is sent twice')

  // Everything from the upload on, by the previous release alone, and then beside a worker of this version.
  await crash.checkResults(await crash.completed((await crash.batchOf(COUNT)).id), COUNT)
  const worker = await crash.start('worker')
  for (let i = 0; i < 3; i++)
    await crash.checkResults(await crash.completed((await crash.batchOf(COUNT)).id), COUNT)
  assert.equal(await worker.end('SIGTERM'), 0, worker.log)

  // A batch that the previous release leaves in the middle, with lines in journals, and this version finishes.
  crash.upstream.calls.splice(0)
  crash.blockUnless((content) => Number(content.slice(1)) < FIRST)
  const left = await crash.batchOf(COUNT)
  await crash.committed(left.id, FIRST)
  await crash.holds(COUNT - FIRST)
  assert.equal(await old.end('SIGTERM'), 0, old.log)
  assert.doesNotMatch(old.log, /"level":50/)

  crash.main = released
  await assert.rejects(crash.start('serve'), /This database has a schema that this program does not know/)
  crash.main = newest
  const books = await run(crash, 'doctor', 'books')
  assert.equal(books.code, 0, books.said)
  const next = await crash.start('serve')
  crash.answerAll()
  await crash.checkResults(await crash.completed(left.id), COUNT)
  assert.equal(crash.sent(1).length, FIRST, 'finished lines are not sent again')
  assert.equal(crash.sent(2).length, COUNT - FIRST)
  await crash.checkResults(await crash.completed((await crash.batchOf(COUNT)).id), COUNT)
  await crash.checkResults(await crash.batch(id), COUNT)
  assert.equal(await next.end('SIGTERM'), 0, next.log)
  assert.ok((await readFile(join(crash.folder, 'data/api-key'), 'utf8')).startsWith('opk_'))
}

describe('the previous release on the schema of this version', { skip, timeout: 300_000 }, () => {
  test(
    'goes on with its batch and takes new ones, and does not start again: SQLite',
    { timeout: 150_000 },
    upgradedAtWork,
  )

  test('the same on PostgreSQL and a bucket', { skip: withoutPostgres, timeout: 150_000 }, async () => {
    const storage: SharedStorage = await sharedStorage()
    after(() => storage[Symbol.asyncDispose]())
    CrashTest.storage = () => storage.make('empty')
    await upgradedAtWork()
  })
})
