import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { postgresServer, withoutPostgres } from '../../test/fakes/postgres-server.ts'
import { apiKeyPath, type Config } from '../config/config.ts'
import { loadConfig } from '../config/load.ts'
import { PROJECT_SCOPES, SCOPES } from '../domain/api-key.ts'
import { authenticate } from '../http/access/auth.ts'
import { listKeys } from '../store/projects.ts'
import { ensureFirstKeys } from './keys.ts'
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
  return (await readFile(apiKeyPath({ data_dir }), 'utf8')).trim()
}

async function withStore(config: Config, work: (store: OpenStore) => Promise<void>): Promise<void> {
  const store = await openDatabase(config)
  try {
    await work(store)
  } finally {
    await store.close()
  }
}

test('on SQLite the first start creates keys that only their owner can read, and later starts keep them', async () => {
  const config = machine('sqlite')
  await withStore(config, async (store) => {
    await ensureFirstKeys(config, store)
    const key = await keyOf(config)
    assert.match(key, /^opk_local_/)
    for (const path of [apiKeyPath(config), apiKeyPath(config, 'openai')])
      assert.equal((await stat(path)).mode & 0o777, 0o600)
    await ensureFirstKeys(config, store)
    assert.equal(await keyOf(config), key)
    assert.equal((await listKeys(store.read)).length, 2)
  })
})

test('the second key is for strict clients of OpenAI, and no operator', async () => {
  const config = machine('strict')
  await withStore(config, async (store) => {
    await ensureFirstKeys(config, store)
    const [first, strict] = await Promise.all(
      [apiKeyPath(config), apiKeyPath(config, 'openai')].map(async (path) => {
        const key = (await readFile(path, 'utf8')).trim()
        return await authenticate(store.read, 'local', `Bearer ${key}`)
      }),
    )
    assert.deepEqual([first?.compat, strict?.compat], [null, 'openai'])
    assert.deepEqual([...(first?.scopes ?? [])], SCOPES)
    assert.deepEqual([...(strict?.scopes ?? [])], PROJECT_SCOPES)
    assert.equal(first?.project_id, strict?.project_id)
  })
})

test('on SQLite a key whose file is missing is made again, and the other one is kept', async () => {
  const config = machine('lost')
  await withStore(config, async (store) => {
    await ensureFirstKeys(config, store)
    const key = await keyOf(config)
    await rm(apiKeyPath(config, 'openai'))
    await ensureFirstKeys(config, store)
    assert.equal((await listKeys(store.read)).length, 3)
    assert.equal(await keyOf(config), key)
    await rm(apiKeyPath(config))
    await ensureFirstKeys(config, store)
    assert.equal((await listKeys(store.read)).length, 4)
    assert.notEqual(await keyOf(config), key)
  })
})

describe('on PostgreSQL', { skip: withoutPostgres }, () => {
  test('only the first machine creates keys, and later ones leave the database unchanged', async () => {
    await using server = await postgresServer()
    const database = await server.database()
    const first = machine('machine-1', database)
    const later = machine('machine-2', database)
    await withStore(first, (store) => ensureFirstKeys(first, store))
    await withStore(later, async (store) => {
      await ensureFirstKeys(later, store)
      assert.equal((await listKeys(store.read)).length, 2)
    })
    assert.ok(await keyOf(first))
    assert.equal(existsSync(join(later.data_dir, 'api-key')), false)
  })
})
