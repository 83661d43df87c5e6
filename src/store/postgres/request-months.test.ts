import assert from 'node:assert/strict'
import { after, describe, it } from 'node:test'
import { sql } from 'kysely'
import { ulid } from 'ulid'
import { emptyPostgres } from '../../../test/fakes/empty-postgres.ts'
import { type PostgresServer, postgresServer, withoutPostgres } from '../../../test/fakes/postgres-server.ts'
import { insertRows, readOwn } from '../rows.ts'
import type { HttpRequestRow } from '../schema.ts'
import type { Store } from '../store.ts'

const PROJECT = 'proj_a'
const DAY_MS = 86_400_000
const OCTOBER = Date.UTC(2031, 9, 20)
const NOVEMBER = Date.UTC(2031, 10, 20)
/** The last moment of a year and the first of the next. */
const MIDNIGHT = Date.UTC(2032, 0, 1)

const server: PostgresServer | null = withoutPostgres ? null : await postgresServer()
after(() => server?.[Symbol.asyncDispose]())

describe('records of HTTP calls, partitioned by month', { skip: withoutPostgres }, () => {
  it('drops the partition of a month that is past its retention, and keeps the next one', async () => {
    await withStore(async (store) => {
      const [old, young] = [call(OCTOBER), call(NOVEMBER)]
      await store.write((tx) => insertRows(tx, 'http_requests', [old, young]))
      assert.deepEqual(await monthsBefore(store, '2031_12'), [
        'http_requests_2031_10',
        'http_requests_2031_11',
      ])

      // October has ended, but its last day is not past its retention.
      await store.maintainHttpRequests(NOVEMBER, Date.UTC(2031, 9, 31))
      assert.ok(await readOwn(store.read, 'http_requests', PROJECT, old.id))

      await store.maintainHttpRequests(NOVEMBER, Date.UTC(2031, 10, 1))
      assert.equal(await readOwn(store.read, 'http_requests', PROJECT, old.id), undefined)
      assert.deepEqual(await readOwn(store.read, 'http_requests', PROJECT, young.id), young)
      assert.deepEqual(await monthsBefore(store, '2031_12'), ['http_requests_2031_11'])
    })
  })

  it('maintenance makes the partitions of the next months once', async () => {
    await withStore(async (store) => {
      await store.maintainHttpRequests(NOVEMBER, NOVEMBER - DAY_MS)
      const made = ['http_requests_2031_11', 'http_requests_2031_12', 'http_requests_2032_01']
      assert.deepEqual(await monthsBefore(store, '2032_02'), made)
      await store.maintainHttpRequests(NOVEMBER + DAY_MS, NOVEMBER)
      assert.deepEqual(await monthsBefore(store, '2032_02'), made)
    })
  })

  it('inserts of concurrent processes make the missing partitions around the turn of a year', async () => {
    await withStore(async (store, other) => {
      const calls = [MIDNIGHT - 2, MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + 1].map(call)
      await Promise.all([
        store.writeAsyncCommit((tx) => insertRows(tx, 'http_requests', calls.slice(0, 2))),
        other.writeAsyncCommit((tx) => insertRows(tx, 'http_requests', calls.slice(2))),
        other.maintainHttpRequests(MIDNIGHT, 0),
      ])
      for (const row of calls)
        assert.deepEqual(await readOwn(store.read, 'http_requests', PROJECT, row.id), row)
    })
  })
})

async function withStore(check: (store: Store, other: Store) => Promise<void>): Promise<void> {
  assert.ok(server)
  await using database = await emptyPostgres(server)
  const store = database.open()
  await check(store, database.open())
}

async function partitionNames(store: Store): Promise<string[]> {
  const { rows } = await store.write((tx) =>
    sql<{ name: string }>`
      SELECT relname AS name FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
      WHERE inhparent = 'http_requests'::regclass ORDER BY relname`.execute(tx),
  )
  return rows.map((row) => row.name)
}

/** Partitions of the months that the tests use; the migration makes those of the machine's clock. */
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
    traceparent: null,
  }
}
