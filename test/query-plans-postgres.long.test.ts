// Every list, with each of its filters and each pair of them, on PostgreSQL.
import { test } from 'node:test'
import { postgresStore } from '../src/store/postgres/store.ts'
import { postgresServer, withoutPostgres } from './fakes/postgres-server.ts'
import { checkLists } from './support/check-lists.ts'

/** Tables of a test are small: a scan or a sort would be the quickest way, and is taken only where there is no other. */
const INDEXES_ONLY = ['enable_seqscan', 'enable_bitmapscan', 'enable_sort'].map((name) => `-c ${name}=off`)

test('no list of PostgreSQL scans or sorts a table, whatever it is filtered by', {
  skip: withoutPostgres,
}, async () => {
  await using server = await postgresServer()
  const url = new URL(await server.database())
  url.searchParams.set('options', INDEXES_ONLY.join(' '))
  await checkLists(postgresStore({ url: url.href }))
})
