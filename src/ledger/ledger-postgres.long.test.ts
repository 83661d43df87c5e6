// Runs the tests of the ledger on PostgreSQL.
import { after, test } from 'node:test'
import { emptyPostgres } from '../../test/fakes/empty-postgres.ts'
import { postgresServer, withoutPostgres } from '../../test/fakes/postgres-server.ts'
import { keepBooksIn } from '../../test/support/test-books.ts'

if (withoutPostgres) test('the ledger on PostgreSQL', { skip: withoutPostgres }, () => {})
else {
  const server = await postgresServer()
  after(() => server[Symbol.asyncDispose]())
  keepBooksIn(async () => {
    const database = await emptyPostgres(server)
    const store = database.open()
    return { store, [Symbol.asyncDispose]: () => database[Symbol.asyncDispose]() }
  })
  await import('./settle.test.ts')
  await import('./settle-sizes.test.ts')
  await import('./concurrent-reservations.long.test.ts')
}
