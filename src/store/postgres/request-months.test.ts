import assert from 'node:assert/strict'
import { after, before, describe, it } from 'node:test'
import { sql } from 'kysely'
import { ulid } from 'ulid'
import { emptyPostgres } from '../../../test/fakes/empty-postgres.ts'
import { type PostgresServer, postgresServer, withoutPostgres } from '../../../test/fakes/postgres-server.ts'
import { insertHttpRequests, readHttpRequest } from '../http-requests.ts'
import type { HttpRequestRow } from '../schema.ts'
import type { Store } from '../store.ts'
import { partitionHttpRequests } from './request-months.ts'

const PROJECT = 'proj_a'
const DAY_MS = 86_400_000
const OCTOBER = Date.UTC(2031, 9, 20)
const NOVEMBER = Date.UTC(2031, 10, 20)
/** The last moment of a year and the first of the next. */
const MIDNIGHT = Date.UTC(2032, 0, 1)

let server: PostgresServer

before(async () => {
  if (!withoutPostgres) server = await postgresServer()
})
after(async () => {
  if (!withoutPostgres) await server[Symbol.asyncDispose]()
})

describe('records of HTTP calls by the month', { skip: withoutPostgres }, () => {
  it('a month past its retention goes as a whole; the next one stays', async () => {
    await withStore(async (store) => {
      const [old, young] = [call(OCTOBER), call(NOVEMBER)]
      await store.write((tx) => insertHttpRequests(tx, [old, young]))
      assert.deepEqual(await monthsBefore(store, '2031_12'), [
        'http_requests_2031_10',
        'http_requests_2031_11',
      ])

      // October has passed, but not all of it is past its retention.
      await store.maintainHttpRequests(NOVEMBER, Date.UTC(2031, 9, 31))
      assert.ok(await readHttpRequest(store.read, PROJECT, old.id))

      await store.maintainHttpRequests(NOVEMBER, Date.UTC(2031, 10, 1))
      assert.equal(await readHttpRequest(store.read, PROJECT, old.id), undefined)
      assert.deepEqual(await readHttpRequest(store.read, PROJECT, young.id), young)
      assert.deepEqual(await monthsBefore(store, '2031_12'), ['http_requests_2031_11'])
    })
  })

  it('upkeep makes the months to come, and is done when they are there', async () => {
    await withStore(async (store) => {
      await store.maintainHttpRequests(NOVEMBER, NOVEMBER - DAY_MS)
      const made = ['http_requests_2031_11', 'http_requests_2031_12', 'http_requests_2032_01']
      assert.deepEqual(await monthsBefore(store, '2032_02'), made)
      await store.maintainHttpRequests(NOVEMBER + DAY_MS, NOVEMBER)
      assert.deepEqual(await monthsBefore(store, '2032_02'), made)
    })
  })

  it('calls go on while a year turns that nobody has prepared for, whoever is first', async () => {
    await withStore(async (store, other) => {
      const calls = [MIDNIGHT - 2, MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + 1].map(call)
      await Promise.all([
        store.writeAsyncCommit((tx) => insertHttpRequests(tx, calls.slice(0, 2))),
        other.writeAsyncCommit((tx) => insertHttpRequests(tx, calls.slice(2))),
        other.maintainHttpRequests(MIDNIGHT, 0),
      ])
      for (const row of calls) assert.deepEqual(await readHttpRequest(store.read, PROJECT, row.id), row)
    })
  })

  it('a database that was not divided yet keeps every row, and loses the old ones in time', async () => {
    await withStore(async (store) => {
      await undivide(store)
      // By the clock of the database, which says up to when the old table is used.
      const now = Date.now()
      const [older, recent, ahead] = [call(now - 90 * DAY_MS), call(now), call(now + 70 * DAY_MS)]
      await store.write((tx) => insertHttpRequests(tx, [older, recent]))
      await store.write((tx) => partitionHttpRequests(tx))
      await store.write((tx) => insertHttpRequests(tx, [ahead]))
      for (const row of [older, recent, ahead])
        assert.deepEqual(await readHttpRequest(store.read, PROJECT, row.id), row)

      await store.maintainHttpRequests(now, now - 30 * DAY_MS)
      assert.equal(await readHttpRequest(store.read, PROJECT, older.id), undefined)
      assert.ok(await readHttpRequest(store.read, PROJECT, recent.id))

      await store.maintainHttpRequests(now + 65 * DAY_MS, now + 62 * DAY_MS)
      assert.equal(await readHttpRequest(store.read, PROJECT, recent.id), undefined)
      assert.ok(await readHttpRequest(store.read, PROJECT, ahead.id))
      assert.ok(!(await partitionNames(store)).includes('http_requests_earlier'))
    })
  })
})

async function withStore(check: (store: Store, other: Store) => Promise<void>): Promise<void> {
  await using database = await emptyPostgres(server)
  const store = database.open()
  await store.migrate()
  await check(store, database.open())
}

/** As earlier versions left it. */
async function undivide(store: Store): Promise<void> {
  await store.write(async (tx) => {
    await sql`CREATE TABLE plain (LIKE http_requests INCLUDING DEFAULTS)`.execute(tx)
    await sql`DROP TABLE http_requests`.execute(tx)
    await sql`ALTER TABLE plain RENAME TO http_requests`.execute(tx)
    await sql`ALTER TABLE http_requests ADD PRIMARY KEY (id)`.execute(tx)
  })
}

async function partitionNames(store: Store): Promise<string[]> {
  const { rows } = await store.write((tx) =>
    sql<{ name: string }>`
      SELECT relname AS name FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
      WHERE inhparent = 'http_requests'::regclass ORDER BY relname`.execute(tx),
  )
  return rows.map((row) => row.name)
}

/** Those that the tests of 2031 and 2032 made: the clock of the machine that runs them is behind. */
async function monthsBefore(store: Store, end: string): Promise<string[]> {
  return (await partitionNames(store)).filter(
    (name) => name >= 'http_requests_2031' && name < `http_requests_${end}`,
  )
}

function call(created: number): HttpRequestRow {
  return {
    // Not `newId`, whose IDs never go back in time.
    id: `req_${ulid(created).toLowerCase()}`,
    project_id: PROJECT,
    key_id: 'key_a',
    method: 'GET',
    path: '/v1/batches',
    status: 200,
    created,
    duration_ms: 3,
    entity: null,
    response: null,
  }
}
