import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { connect, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, it } from 'node:test'
import { sql } from 'kysely'
import { storeConformance } from '../../../test/conformance/store.ts'
import * as certificate from '../../../test/fakes/certificate.ts'
import { testClock } from '../../../test/fakes/clock.ts'
import { emptyPostgres } from '../../../test/fakes/empty-postgres.ts'
import { type PostgresServer, postgresServer, withoutPostgres } from '../../../test/fakes/postgres-server.ts'
import { listen } from '../../../test/support/listen.ts'
import { ensureProject } from '../projects.ts'
import { readRow } from '../rows.ts'
import type { Writer } from '../store.ts'
import { postgresStore } from './store.ts'

let server: PostgresServer

before(async () => {
  if (!withoutPostgres) server = await postgresServer()
})
after(async () => {
  if (!withoutPostgres) await server[Symbol.asyncDispose]()
})

storeConformance('PostgreSQL', (content) => emptyPostgres(server, content), withoutPostgres)

describe('PostgreSQL', { skip: withoutPostgres }, () => {
  it('a restart of the database is waited for, by reads and by transactions', async () => {
    await using database = await emptyPostgres(server)
    const store = database.open()
    await store.migrate()
    await store.write((tx) => ensureProject(tx, project('before')))
    await server.kill()
    const reading = readRow(store.read, 'projects', { name: 'before' })
    const writing = store.write((tx) => ensureProject(tx, project('after')))
    await server.start()
    assert.equal((await reading)?.name, 'before')
    assert.equal((await writing).name, 'after')
    assert.equal((await readRow(store.read, 'projects', { name: 'after' }))?.name, 'after')
  })

  it('a start that waits for the database says so, once, and goes on', async () => {
    await using database = await emptyPostgres(server)
    const told: unknown[] = []
    await server.kill()
    await using store = postgresStore({
      url: database.url,
      onWaiting(failure) {
        told.push(String(failure))
        void server.start()
      },
    })
    await store.migrate()
    assert.match(String(told[0]), /the database cannot be reached \(.*\)\. Start it, or fix `database`/)
    assert.equal(told.length, 1)
  })

  it('what keeps a start from reaching the database names the database and the parameter', async () => {
    await using secure = await postgresServer({ tls: certificate })
    const url = (await secure.database('empty')).replace('127.0.0.1', 'localhost')
    const reached = async (parameters: string, at = url): Promise<string> => {
      await using store = postgresStore({ url: `${at}?${parameters}` })
      return await store.migrate().then(() => 'reached', String)
    }
    const database = /the database cannot be reached \(/
    assert.match(await reached('sslmode=verify-full'), /cannot be reached \(self-signed .*`sslrootcert=FILE`/)
    assert.match(await reached('sslmode=verify-full&sslrootcert=/none.pem'), database)
    const folder = mkdtempSync(join(tmpdir(), 'offpeak-ca-'))
    writeFileSync(join(folder, 'ca.pem'), certificate.cert)
    const trusted = `sslmode=verify-full&sslrootcert=${folder}/ca.pem`
    assert.equal(await reached(trusted), 'reached')
    const elsewhere = await reached(trusted, url.replace('localhost', '127.0.0.1'))
    assert.match(elsewhere, /cannot be reached \(.*the name that its certificate has/)
    rmSync(folder, { recursive: true })
    const plain = await server.database('empty')
    assert.match(await reached('sslmode=require', plain), /does not support SSL.*`sslmode=disable`/)
  })

  it('a migration that a conflict or a deadlock has undone is repeated', async () => {
    for (const code of ['40001', '40P01']) {
      await using database = await emptyPostgres(server, 'empty')
      await using admin = database.open()
      for (const statement of [
        'CREATE SEQUENCE statements',
        `CREATE FUNCTION fail_once() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
          IF nextval('statements') = 1 THEN RAISE EXCEPTION 'undone' USING ERRCODE = '${code}'; END IF; END $$`,
        'CREATE EVENT TRIGGER fail_once ON ddl_command_end EXECUTE FUNCTION fail_once()',
      ])
        await sql.raw(statement).execute(admin.read)
      await using store = database.open()
      await store.migrate()
    }
  })

  it('the timeouts of the role do not end a migration', async () => {
    await using database = await emptyPostgres(server)
    const { hostname, port, pathname } = new URL(database.url)
    await using admin = database.open()
    for (const statement of [
      'CREATE ROLE timed LOGIN SUPERUSER',
      "ALTER ROLE timed SET statement_timeout = '1ms'",
      "ALTER ROLE timed SET lock_timeout = '1ms'",
    ])
      await sql.raw(statement).execute(admin.read)
    await using timed = postgresStore({ url: `postgres://timed@${hostname}:${port}${pathname}` })
    await timed.migrate()
    assert.deepEqual(await admin.read.selectFrom('projects').selectAll().execute(), [])
  })

  it('a start that waits for a lock says so', async () => {
    await using database = await emptyPostgres(server)
    const store = database.open()
    const clock = testClock()
    const told: unknown[] = []
    await using late = postgresStore({ url: database.url, clock, onWaiting: (failure) => told.push(failure) })
    let migrating: Promise<void> | null = null
    await store.write(async (tx) => {
      await sql`LOCK TABLE kysely_migration IN ACCESS EXCLUSIVE MODE`.execute(tx)
      migrating = late.migrate()
      await database.contention?.()
      await clock.advance(5_000)
    })
    await migrating
    assert.match(String(told), /the database is not up to date yet\. Its tables /)
  })

  it('a transaction that the crash of the database cut off is done again, once', async () => {
    await using database = await emptyPostgres(server)
    const store = database.open()
    let runs = 0
    await store.write(async (tx) => {
      runs++
      await ensureProject(tx, project(`run-${runs}`))
      if (runs === 1) {
        await server.kill()
        await server.start()
      }
      await ensureProject(tx, project('last'))
    })
    assert.equal(runs, 2)
    const names = await store.read.selectFrom('projects').select('name').orderBy('name').execute()
    assert.deepEqual(
      names.map((row) => row.name),
      ['last', 'run-2'],
    )
  })

  it('a server that takes no changes is left for one that does, within the same patience', async () => {
    await using database = await emptyPostgres(server)
    const store = database.open()
    const other = postgresStore({ url: database.url, patience_ms: 30 })
    const name = new URL(database.url).pathname.slice(1)
    // For connections that are opened from now on.
    const take = (changes: boolean) =>
      store.write((tx) =>
        sql`ALTER DATABASE ${sql.id(name)} SET default_transaction_read_only = ${sql.lit(changes ? 'off' : 'on')}`.execute(
          tx,
        ),
      )
    await take(false)
    await assert.rejects(
      other.write((tx) => ensureProject(tx, project('lost'))),
      { name: 'DatabaseFailure', message: /is read-only \(.*\)\. It may be a standby: .* the primary\.$/ },
    )
    assert.match(other.failing?.message ?? '', /is read-only/)
    let runs = 0
    const patient = postgresStore({ url: database.url })
    await patient.write(async (tx) => {
      if (++runs === 2) await take(true)
      await ensureProject(tx, project('kept'))
    })
    assert.equal(runs, 3, 'on a connection of its own each time')
    assert.equal((await readRow(other.read, 'projects', { name: 'kept' }))?.name, 'kept')
    for (const opened of [other, patient]) await opened.close()
  })

  it('a lock that others keep is told as the database, by reads and by transactions', async () => {
    await using database = await emptyPostgres(server)
    const store = database.open()
    const impatient = postgresStore({ url: `${database.url}?lock_timeout_ms=50`, patience_ms: 100 })
    const late = {
      name: 'DatabaseFailure',
      message: /in time \(.* lock timeout\)\. Look in pg_stat_activity/,
    }
    await store.write(async (tx) => {
      await sql`LOCK TABLE projects IN ACCESS EXCLUSIVE MODE`.execute(tx)
      await assert.rejects(readRow(impatient.read, 'projects', { name: 'a' }), late)
      await assert.rejects(
        impatient.write((other) => ensureProject(other, project('a'))),
        late,
      )
    })
    await impatient.close()
  })

  it('patience has an end: then the failure comes out', async () => {
    const store = postgresStore({ url: 'postgres://nobody@127.0.0.1:1/none', patience_ms: 30 })
    const unreachable = { name: 'DatabaseFailure', message: /cannot be reached \(connect ECONNREFUSED/ }
    await assert.rejects(readRow(store.read, 'projects', { name: 'a' }), unreachable)
    await assert.rejects(
      store.write((tx) => ensureProject(tx, project('a'))),
      unreachable,
    )
    await store.close()
  })

  it('a connection that answers no more is given up, and nothing more is sent on it', async () => {
    await using database = await emptyPostgres(server)
    const { port } = new URL(database.url)
    await using relay = await blackHoleRelay(Number(port))
    const url = database.url.replace(`:${port}/`, `:${relay.port}/`)
    const options = 'statement_timeout_ms=200&answer_extra_ms=1&pool_max=1'
    const store = postgresStore({ url: `${url}?${options}`, patience_ms: 1 })
    await store.write((tx) => ensureProject(tx, project('before')))
    const unanswered = store.write(async (tx) => {
      relay.swallow()
      await ensureProject(tx, project('lost'))
    })
    await assert.rejects(unanswered, /the database cannot be reached \(Query read timeout\)/)
    await store.write((tx) => ensureProject(tx, project('after')))
    assert.match(relay.swallowed(), /insert into "projects"|select/i)
    assert.doesNotMatch(relay.swallowed(), /rollback/i)
    const names = await store.read.selectFrom('projects').select('name').orderBy('name').execute()
    assert.deepEqual(
      names.map((row) => row.name),
      ['after', 'before'],
    )
    await store.close()
  })

  it('of two transactions that wait for each other one is done again, and both are kept', async () => {
    await using database = await emptyPostgres(server)
    const store = database.open()
    await store.write(async (tx) => {
      await ensureProject(tx, project('a'))
      await ensureProject(tx, project('b'))
    })
    let met = 0
    let meet: () => void = () => {}
    const both = new Promise<void>((resolve) => {
      meet = resolve
    })
    const touch = (tx: Writer, name: string) =>
      tx
        .updateTable('projects')
        .set((eb) => ({ created: eb('created', '+', 1) }))
        .where('name', '=', name)
        .execute()
    const cross = (first: string, second: string) =>
      store.write(async (tx) => {
        await touch(tx, first)
        if (++met === 2) meet()
        await both
        await touch(tx, second)
      })
    await Promise.all([cross('a', 'b'), cross('b', 'a')])
    assert.equal(met, 3)
    const rows = await store.read.selectFrom('projects').select('created').execute()
    assert.deepEqual(
      rows.map((row) => row.created),
      [3, 3],
    )
  })

  it('every text column compares bytes, whatever the database was created with', async () => {
    await using database = await emptyPostgres(server)
    const store = database.open()
    const others = await store.write(
      async (tx) =>
        await sql`
          SELECT table_name, column_name FROM information_schema.columns
          WHERE table_schema = 'public' AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'`.execute(
          tx,
        ),
    )
    assert.deepEqual(others.rows, [])
  })

  it('tables of much change are set up for it, once', async () => {
    await using database = await emptyPostgres(server)
    const store = database.open()
    await store.migrate()
    await store.migrate()
    const { rows } = await store.write((tx) =>
      sql<{ reloptions: string[] }>`SELECT reloptions FROM pg_class WHERE relname = 'workers'`.execute(tx),
    )
    assert.ok(rows[0]?.reloptions.includes('fillfactor=50'))
    assert.equal(rows[0]?.reloptions.length, 4)
  })

  it('a session idles in a transaction, or runs a statement, only so long', async () => {
    await using database = await emptyPostgres(server)
    const store = postgresStore({ url: `${database.url}?statement_timeout_ms=50&pool_max=1` })
    await assert.rejects(
      store.write((tx) => sql`SELECT pg_sleep(5)`.execute(tx)),
      { name: 'DatabaseFailure', message: /did not get to an answer in time \(.* statement timeout\)/ },
    )
    const { rows } = await store.write((tx) =>
      sql<{ name: string; setting: string }>`
        SELECT name, setting FROM pg_settings
        WHERE name IN ('idle_in_transaction_session_timeout', 'lock_timeout', 'application_name') ORDER BY name`.execute(
        tx,
      ),
    )
    assert.deepEqual(
      rows.map((row) => row.setting),
      ['offpeak', '15000', '10000'],
    )
    await store.close()
  })
})

function project(name: string): { id: string; name: string; plan: string; created: number } {
  return { id: `proj_${name}`, name, plan: 'payg', created: 1 }
}

/** Passes bytes on to PostgreSQL, and drops those of the connections that were open at `swallow`. */
async function blackHoleRelay(target: number) {
  const open = new Set<Socket>()
  const lost = new Set<Socket>()
  let swallowed = ''
  const relay = createServer((client) => {
    const onward = connect(target, '127.0.0.1')
    open.add(client)
    client.on('data', (bytes) => {
      if (lost.has(client)) swallowed += bytes.toString('latin1')
      else onward.write(bytes)
    })
    onward.on('data', (bytes) => {
      if (!lost.has(client)) client.write(bytes)
    })
    for (const [one, other] of [
      [client, onward],
      [onward, client],
    ] as const)
      one.on('error', () => {}).on('close', () => other.destroy())
  })
  return {
    ...(await listen(relay)),
    swallow: () => {
      for (const client of open) lost.add(client)
    },
    swallowed: () => swallowed,
  }
}
