// Databases of a test's own on one server that the test file starts.
import { Client } from 'pg'
import { postgresStore } from '../../src/store/postgres/store.ts'
import type { Store } from '../../src/store/store.ts'
import type { EmptyDatabase } from '../conformance/store.ts'
import type { PostgresServer } from './postgres-server.ts'

/** A database without rows, or without tables if it is `empty`; the stores opened on it are closed with it. */
export async function emptyPostgres(
  server: PostgresServer,
  content?: 'empty',
): Promise<EmptyDatabase & { url: string }> {
  const url = await server.database(content)
  const opened: Store[] = []
  return {
    url,
    open() {
      const store = postgresStore({ url })
      opened.push(store)
      return store
    },
    contention: () => someoneWaits(url),
    async [Symbol.asyncDispose]() {
      for (const store of opened) await store.close()
    },
  }
}

async function someoneWaits(url: string): Promise<void> {
  const client = new Client({ connectionString: url })
  await client.connect()
  const waiting = `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
  while ((await client.query(waiting)).rowCount === 0) {
    // Asked again: each answer takes a round trip.
  }
  await client.end()
}
