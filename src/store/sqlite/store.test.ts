import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { StatementSync } from 'node:sqlite'
import { describe, it } from 'node:test'
import { sql } from 'kysely'
import { type EmptyDatabase, storeConformance } from '../../../test/conformance/store.ts'
import { sleep, systemClock } from '../../domain/clock.ts'
import { QUOTA_NAMES } from '../../domain/plan.ts'
import { MIGRATIONS, migrate } from '../migrate.ts'
import { isStored, readUse } from '../projects.ts'
import { insertRow } from '../rows.ts'
import { Column, INDEXES, TABLES } from '../schema.ts'
import { DatabaseFull, SchemaMismatch, type Store } from '../store.ts'
import { openSession, renewSession, requeueExpiredLeases } from '../workers.ts'
import { sqliteStore } from './store.ts'

storeConformance('SQLite', emptySqlite)

describe('SQLite', () => {
  it('processes that start at once bring the schema up together, and all of them can write', async () => {
    await using database = await emptySqlite()
    const program = `
      import { sqliteStore } from ${JSON.stringify(new URL('./store.ts', import.meta.url).href)}
      import { openSession } from ${JSON.stringify(new URL('../workers.ts', import.meta.url).href)}
      const store = sqliteStore({ path: ${JSON.stringify(database.path)} })
      await store.migrate()
      for (let i = 0; i < 10; i++) await store.write((tx) => openSession(tx, 1000, 1))
      await store.close()`
    const exits = Array.from({ length: 3 }, async () => {
      const child = spawn(process.execPath, ['--input-type=module', '-e', program], { stdio: 'inherit' })
      const [code] = await once(child, 'exit')
      return code
    })
    assert.deepEqual(await Promise.all(exits), [0, 0, 0])
    const rows = await database.open().read.selectFrom('workers').select('id').execute()
    assert.equal(rows.length, 30)
  })

  it('counts the use of all quotas by one statement', async (t) => {
    await using database = await emptySqlite()
    const store = database.open()
    await store.migrate()
    const { mock } = t.mock.method(StatementSync.prototype, 'all')
    const use = await readUse(store.read, 'proj_a', QUOTA_NAMES.filter(isStored))
    assert.equal(mock.callCount(), 1)
    const none = { stored_bytes: 0, open_batches: 0, queued_lines: 0, limits: 0, webhooks: 0, keys: 0 }
    assert.deepEqual(use, none)
  })

  it('a database of every released version is brought to the schema of a new one', async () => {
    await using fresh = await emptySqlite()
    const newest = fresh.open()
    await newest.migrate()
    const schema = await schemaOf(newest)
    for (const name of readdirSync(SCHEMAS)) {
      await using old = await emptySqlite()
      const store = old.open()
      await restoreSchema(store, name)
      await store.migrate()
      // A column, a table or an index that is new has the number of a new migration in schema.ts.
      assert.deepEqual(await schemaOf(store), schema, name)
    }
  })

  it('each part of the schema names a migration that there is', () => {
    const columns = Object.entries(TABLES).flatMap(([table, all]) =>
      Object.entries<Column<unknown>>(all).map(
        ([name, { traits }]) => [`${table}.${name}`, traits.since] as const,
      ),
    )
    const parts = [...columns, ...Object.entries(INDEXES).map(([name, { since }]) => [name, since] as const)]
    const isMissing = ([, since = 1]: readonly [string, number?]): boolean => since > MIGRATIONS.length
    assert.deepEqual(parts.filter(isMissing), [], 'MIGRATIONS in migrate.ts lacks a name')
  })

  it('a later migration adds columns, tables and indexes to version 1.0.0, and then fills them', async () => {
    await using database = await emptySqlite()
    const store = database.open()
    await restoreSchema(store, '1.0.0.sql')
    await store.write((tx) =>
      insertRow(tx, 'projects', { id: 'proj_1', name: 'a', plan: 'payg', created: 1 }),
    )
    const note = new Column('text', { isNullable: true, since: 2 })
    const later = {
      migrations: [
        ...MIGRATIONS.slice(0, 1),
        { name: 'notes', statements: ["UPDATE projects SET note = 'old'"] },
      ],
      tables: {
        projects: { ...TABLES.projects, note },
        notes: { id: new Column('text', { isKey: true, since: 2 }) },
      },
      indexes: { projects_noted: { table: 'projects', on: 'note', since: 2 } },
    }
    for (let i = 0; i < 2; i++) await store.write((tx) => migrate(tx, later))
    const { rows } =
      await sql`SELECT note, (SELECT count(*) FROM notes) AS notes FROM projects INDEXED BY projects_noted
      WHERE note = 'old'`.execute(store.read)
    assert.deepEqual(
      rows.map((row) => ({ ...(row as object) })),
      [{ note: 'old', notes: 0 }],
    )
    await assert.rejects(store.migrate(), SchemaMismatch)
  })

  it('a full disk is named in each transaction that meets it, and the next one with space succeeds', async () => {
    await using database = await emptySqlite()
    const store = database.open()
    await store.migrate()
    const pages = (max: string) => store.write((tx) => sql.raw(`PRAGMA max_page_count = ${max}`).execute(tx))
    const insert = (id: string) =>
      store.write(async (tx) => {
        const project = { id, name: id.repeat(100_000), plan: 'payg', created: 1 }
        await tx.insertInto('projects').values(project).execute()
      })
    // The limit is the size of the file.
    await pages('1')
    for (let i = 0; i < 2; i++) {
      await assert.rejects(insert('proj_1'), (error) => {
        assert.ok(error instanceof DatabaseFull, String(error))
        assert.match(error.message, /offpeak\.db cannot grow: its disk is full .*Free space there/)
        return true
      })
      assert.ok(store.failing instanceof DatabaseFull)
    }
    await pages('1000000')
    await insert('proj_2')
    assert.equal(store.failing, null)
    const rows = await store.read.selectFrom('projects').select('id').execute()
    assert.deepEqual(
      rows.map(({ id }) => id),
      ['proj_2'],
    )
  })

  it('a process that always has a transaction to run leaves others theirs', async () => {
    await using database = await emptySqlite()
    const store = database.open()
    await store.migrate()
    const busy = `
      import { sqliteStore } from ${JSON.stringify(new URL('./store.ts', import.meta.url).href)}
      import { openSession } from ${JSON.stringify(new URL('../workers.ts', import.meta.url).href)}
      const store = sqliteStore({ path: ${JSON.stringify(database.path)} })
      let [writes, ended] = [0, false]
      process.stdin.on('end', () => { ended = true }).resume()
      await Promise.all(Array.from({ length: 8 }, async () => {
        while (!ended) {
          await store.write((tx) => openSession(tx, 1000, 1))
          if (++writes === 1) process.stdout.write('begun ')
          // Nothing else lets the event loop go on while nobody else writes.
          await new Promise((resolve) => setImmediate(resolve))
        }
      }))
      process.stdout.write(String(writes))
      await store.close()`
    const child = spawn(process.execPath, ['--input-type=module', '-e', busy], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    using _child = { [Symbol.dispose]: () => child.kill('SIGKILL') }
    let said = ''
    child.stdout.setEncoding('utf8').on('data', (text) => {
      said += text
    })
    await once(child.stdout, 'data')
    for (let i = 0; i < 20; i++) await store.write((tx) => openSession(tx, 1000, 1))
    child.stdin.end()
    await once(child, 'exit')
    const theirs = Number(said.replace('begun ', ''))
    assert.ok(theirs < 20 * 20, `${theirs} transactions of the other process to 20`)
  })

  it('a process that crashed while it waited for the lock keeps no other from it', async () => {
    await using database = await emptySqlite()
    const store = database.open()
    await store.migrate()
    await writeFile(`${database.path}-waiting`, '')
    for (let i = 0; i < 2; i++) await store.write((tx) => openSession(tx, 1000, 1))
  })

  it('an asynchronous commit waits for the lock of another writer without blocking the event loop', async () => {
    await using database = await emptySqlite()
    const store = database.open()
    await store.migrate()
    const other = database.open()
    const project = { id: 'proj_1', name: 'a', plan: 'payg', created: 1 }
    let noted: Promise<unknown> | undefined
    let locked = true
    await other.write(async (tx) => {
      await tx
        .insertInto('projects')
        .values({ ...project, id: 'proj_2', name: 'b' })
        .execute()
      noted = store
        .writeAsyncCommit((tx) => tx.insertInto('projects').values(project).execute())
        .then(() => assert.equal(locked, false))
      // If the thread were blocked, this timer could not release the lock.
      await sleep(systemClock, 20)
      locked = false
    })
    await noted
    const names = await other.read.selectFrom('projects').select('name').orderBy('name').execute()
    assert.deepEqual(
      names.map(({ name }) => name),
      ['a', 'b'],
    )
  })

  it('an asynchronous commit in progress does not deadlock a write of the same process', async () => {
    await using database = await emptySqlite()
    const store = database.open()
    await store.migrate()
    const project = { id: 'proj_1', name: 'a', plan: 'payg', created: 1 }
    await Promise.all([
      store.writeAsyncCommit(async (tx) => {
        await tx.insertInto('projects').values(project).execute()
        // The lock is held over a turn of the event loop, in which the write begins.
        await sleep(systemClock, 1)
      }),
      store.write((tx) =>
        tx
          .insertInto('projects')
          .values({ ...project, id: 'proj_2', name: 'b' })
          .execute(),
      ),
    ])
    const rows = await store.read.selectFrom('projects').select('id').execute()
    assert.equal(rows.length, 2)
  })

  it('leases are judged by the clock it was given', async () => {
    await using database = await emptySqlite()
    let now = 5_000
    const store = sqliteStore({ path: database.path, leaseNow: () => now })
    await store.migrate()
    const id = await store.write((tx) => openSession(tx, 100, 1))
    now += 99
    assert.equal(await store.write((tx) => renewSession(tx, id, 100)), true)
    now += 100
    assert.deepEqual(await store.write((tx) => requeueExpiredLeases(tx)), [id])
    await store.close()
  })
})

/** The schemas of released versions, as test/support/print-schema.ts has printed them. */
const SCHEMAS = new URL('../../../test/fixtures/schemas/', import.meta.url)

async function restoreSchema(store: Store, name: string): Promise<void> {
  const statements = readFileSync(new URL(name, SCHEMAS), 'utf8').split(/;\n/).filter(Boolean)
  await store.write(async (tx) => {
    for (const statement of statements) await sql.raw(statement).execute(tx)
  })
}

async function schemaOf({ read }: Store) {
  const columns = sql`SELECT t.name AS of, c.name, c.type, c."notnull", c.dflt_value, c.pk
    FROM sqlite_schema t, pragma_table_info(t.name) c ORDER BY 1, 2`
  const references = sql`SELECT t.name AS of, r."from", r."table", r."to"
    FROM sqlite_schema t, pragma_foreign_key_list(t.name) r ORDER BY 1, 2`
  const indexes = sql`SELECT name, sql FROM sqlite_schema WHERE type = 'index' ORDER BY 1`
  const found = await Promise.all([columns, references, indexes].map((query) => query.execute(read)))
  return found.map(({ rows }) => rows)
}

async function emptySqlite(): Promise<EmptyDatabase & { path: string }> {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-sqlite-'))
  const path = join(folder, 'offpeak.db')
  const opened: Store[] = []
  return {
    path,
    open() {
      const store = sqliteStore({ path })
      opened.push(store)
      return store
    },
    contention: null,
    async [Symbol.asyncDispose]() {
      for (const store of opened) await store.close()
      await rm(folder, { recursive: true, force: true })
    },
  }
}
