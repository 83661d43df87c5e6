import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { postgresServer, withoutPostgres } from '../../test/fakes/postgres-server.ts'
import type { Config } from '../config/config.ts'
import { loadConfig } from '../config/load.ts'
import { listKeys } from '../store/projects.ts'
import { ensureFirstKey } from './keys.ts'
import { type OpenStore, openDatabase } from './stores.ts'

const folder = await mkdtemp(join(tmpdir(), 'offpeak-first-'))
after(() => rm(folder, { recursive: true, force: true }))
const MASTER_KEY = Buffer.alloc(32, 7).toString('base64')

/** The configuration of a machine: its data folder, and a shared database or one of its own. */
function machine(name: string, database?: string): Config {
  const data = join(folder, name)
  const env = { OFFPEAK_MASTER_KEY: MASTER_KEY, ...(database ? { OFFPEAK_DATABASE: database } : {}) }
  return loadConfig({ env, overrides: { data } })
}

async function keyOf({ data_dir }: Config): Promise<string> {
  return (await readFile(join(data_dir, 'api-key'), 'utf8')).trim()
}

async function withStore(config: Config, work: (store: OpenStore) => Promise<void>): Promise<void> {
  const store = await openDatabase(config)
  try {
    await work(store)
  } finally {
    await store.close()
  }
}

test('on SQLite the first start creates a key that only its owner can read, and later starts keep it', async () => {
  const config = machine('sqlite')
  await withStore(config, async (store) => {
    await ensureFirstKey(config, store)
    const key = await keyOf(config)
    assert.match(key, /^opk_local_/)
    assert.equal((await stat(join(config.data_dir, 'api-key'))).mode & 0o777, 0o600)
    await ensureFirstKey(config, store)
    assert.equal(await keyOf(config), key)
    assert.equal((await listKeys(store.read)).length, 1)
  })
})

test('on SQLite a lost key is replaced', async () => {
  const config = machine('lost')
  await withStore(config, async (store) => {
    await ensureFirstKey(config, store)
    await rm(join(config.data_dir, 'api-key'))
    await ensureFirstKey(config, store)
    assert.equal((await listKeys(store.read)).length, 2)
    assert.ok(await keyOf(config))
  })
})

describe('on PostgreSQL', { skip: withoutPostgres }, () => {
  test('only the first machine creates a key, and later ones leave the database unchanged', async () => {
    await using server = await postgresServer()
    const database = await server.database()
    const first = machine('machine-1', database)
    const later = machine('machine-2', database)
    await withStore(first, (store) => ensureFirstKey(first, store))
    await withStore(later, async (store) => {
      await ensureFirstKey(later, store)
      assert.equal((await listKeys(store.read)).length, 1)
    })
    assert.ok(await keyOf(first))
    assert.equal(existsSync(join(later.data_dir, 'api-key')), false)
  })
})
