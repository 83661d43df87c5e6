// A service with results, a webhook and a batch still to run moves to other stores, and goes on there.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdir, mkdtemp, rm, unlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { readFreeze } from '../../src/admin/database-freeze.ts'
import { migrateData as move, type Place } from '../../src/admin/migrate-data.ts'
import { reconcile } from '../../src/admin/reconcile.ts'
import { sealBlobs } from '../../src/blobs/sealed.ts'
import { adminCommands, migrateData } from '../../src/compose/admin-commands.ts'
import {
  masterKey,
  type OpenStore,
  openBlobs,
  openDatabase,
  openStores,
  register,
} from '../../src/compose/stores.ts'
import type { Config } from '../../src/config/config.ts'
import { loadConfig } from '../../src/config/load.ts'
import { launchOnly, runOffpeak } from '../fakes/offpeak.ts'
import { withoutPostgres } from '../fakes/postgres-server.ts'
import { type SharedStorage, sharedStorage } from '../fakes/shared-storage.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, type Storage, TestService } from '../service.ts'

const silent = { info() {}, warn() {}, error() {} }
const quiet = (): void => {}

/** A service that is stopped after one batch has ended; another batch waits to be planned and run. */
async function left(storage?: Storage) {
  const upstream = await testUpstream(echo)
  const yaml = configFor(upstream.base_url)
  const service = await TestService.start(storage ? `${storage.yaml}\n${yaml}` : yaml)
  await service.json('POST', '/v1/webhooks', { url: 'https://example.org/hook' })
  const done = await service.run([line('a'), line('b'), line('c', 'c', { model: 'nope' })], {
    metadata: { entity: 'user:1' },
  })
  const output = await service.content(done.output_file_id)
  await service.worker.stop()
  const waiting = await service.create(done.input_file_id)
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-moved-'))
  return {
    ...{ service, yaml, done, output, waiting, folder, from: service.config },
    to: loadConfig({ env: {}, overrides: { data: join(folder, 'data') } }),
    /** Starts the service at its new place, and sees that nothing is missing and that it goes on. */
    async assertArrived(storage?: Storage): Promise<void> {
      const kept = TestService.storage
      if (storage) TestService.storage = async () => storage
      await using there = await TestService.start(yaml, { folder }).finally(() => {
        TestService.storage = kept
      })
      there.key = service.key
      const ended = await there.ended(waiting.id)
      assert.deepEqual([ended.status, ended.request_counts.completed], ['completed', 2])
      assert.equal(await there.content(done.output_file_id), output)
      assert.deepEqual(await there.get(done.id), done)
      assert.deepEqual((await reconcile(there.stores)).mismatches, [])
    },
    async [Symbol.asyncDispose]() {
      await service[Symbol.asyncDispose]()
      await upstream[Symbol.asyncDispose]()
      await rm(folder, { recursive: true, force: true })
    },
  }
}

/** The stores of a configuration, as a move sees them. */
async function place(name: string, config: Config): Promise<Place & { store: OpenStore } & AsyncDisposable> {
  const store = await openDatabase(config)
  const { blobs } = await openBlobs(config.blobs)
  return { name, store, blobs, [Symbol.asyncDispose]: () => store.close() }
}

test('everything arrives, the service goes on there, and the old place is closed until it is released', async () => {
  await using one = await left()
  const told: string[] = []
  const moved = await migrateData(one.from, one.to, (text) => told.push(text))
  assert.ok(moved.rows > 20 && moved.blobs >= 4 && moved.opened === moved.blobs)
  assert.deepEqual(moved.missing, [])
  assert.ok(told.includes('comparing both sides'))
  await one.assertArrived()

  const { store } = one.service.stores
  await assert.rejects(register({ store }, one.from, silent), {
    name: 'AdminCommandError',
    message:
      /what it holds was moved to .*; start with that, or run "offpeak migrate-data --from PLACE --release"/,
  })
  await assert.rejects(migrateData(one.from, one.to, quiet), { name: 'AdminCommandError' })
  await adminCommands(() => undefined).releaseMoved(one.from)
  const registration = await register({ store }, one.from, silent)
  await registration.close()
})

test('a move that is interrupted anywhere is finished by running it again', async () => {
  await using one = await left()
  await using from = await place('here', one.from)
  await using to = await place('there', one.to)
  const master = await masterKey(one.from, from.store)
  const sealed = sealBlobs(to.blobs, master)
  let interrupted = 0
  for (let pages = 1; ; pages++) {
    let told = 0
    const tell = (): void => {
      // Each attempt gets as far as the one before, and a step further.
      if (told++ === pages % 3) throw new Error('crash')
    }
    const attempt = move(from, to, {
      ...{ sealed, master_key_id: master.id, rows_at_once: 2 },
      tell: interrupted < 60 ? tell : quiet,
    })
    const moved = await attempt.catch((error: unknown) => {
      assert.ok(error instanceof Error && error.message === 'crash', String(error))
      return null
    })
    if (moved) break
    interrupted++
    assert.equal((await readFreeze(to.store.read))?.by, 'move_in')
    await assert.rejects(register(to, one.to, silent), /has not arrived completely from here/)
    await assert.rejects(register(from, one.from, silent), /is being moved to there/)
  }
  assert.ok(interrupted >= 10, `${interrupted} interruptions`)
  await mkdir(one.to.data_dir, { recursive: true })
  await writeFile(join(one.to.data_dir, 'master-key'), `${master.secret.export().toString('base64')}\n`, {
    mode: 0o600,
  })
  await one.assertArrived()
})

test('a target with anything in it is refused, and so is a service that runs on either side', async () => {
  await using one = await left()
  const api = await register(one.service.stores, one.from, silent)
  await assert.rejects(migrateData(one.from, one.to, quiet), {
    name: 'AdminCommandError',
    message: /^nothing can be moved from .*: 1 process of the service /,
  })
  await api.close()
  {
    await using to = await place('there', one.to)
    await to.blobs.put('stray', [Buffer.from('x')])
  }
  await assert.rejects(migrateData(one.from, one.to, quiet), /is not empty \(there is a blob stray\)/)
  {
    await using to = await place('there', one.to)
    await to.blobs.delete('stray')
    const row = { id: 'proj_x', name: 'x', plan: 'payg', created: 1 }
    await to.store.write((tx) => tx.insertInto('projects').values(row).execute())
  }
  await assert.rejects(migrateData(one.from, one.to, quiet), /is not empty \(projects has rows\)/)
  assert.equal(await readFreeze(one.service.stores.store.read), null)
})

test('a row that changed on the way, and a blob that was cut short, are found by comparing', async () => {
  await using one = await left()
  one.service.tampered = true
  await using from = await place('here', one.from)
  await using to = await place('there', one.to)
  const master = await masterKey(one.from, from.store)
  const sealed = sealBlobs(to.blobs, master)
  const options = { sealed, master_key_id: master.id }
  const tell = (text: string): void => {
    if (text === 'comparing both sides') throw new Error('crash')
  }
  await assert.rejects(move(from, to, { ...options, tell }), /crash/)
  const { key } = await from.store.read.selectFrom('blobs').select('key').executeTakeFirstOrThrow()
  const bytes = await from.blobs.size(key)
  await to.blobs.put(key, [Buffer.from('short')])
  await assert.rejects(move(from, to, options), {
    name: 'AdminCommandError',
    message: `blob ${key} differs: ${bytes} bytes at the source, 5 at the target; begin again with an empty target`,
  })
  await to.blobs.put(key, from.blobs.read(key))
  await from.store.write((tx) => tx.updateTable('batches').set({ cost_nanos: 7 }).execute())
  await assert.rejects(
    move(from, to, options),
    /the table batches differs: 2 rows were to be moved, 2 are there/,
  )
  assert.equal((await readFreeze(to.store.read))?.by, 'move_in')
})

test('a blob that the source has lost does not stop a move, and is named', async () => {
  await using one = await left()
  one.service.tampered = true
  const { store } = one.service.stores
  const { output_blob } = await store.read
    .selectFrom('chunks')
    .select('output_blob')
    .where('batch_id', '=', one.done.id)
    .executeTakeFirstOrThrow()
  assert(output_blob)
  assert(one.from.blobs.kind === 'disk')
  await unlink(join(one.from.blobs.root, 'objects', output_blob))
  const moved = await migrateData(one.from, one.to, quiet)
  assert.deepEqual(moved.missing, [output_blob])
})

test('another master key at the target is refused', async () => {
  await using one = await left()
  await mkdir(one.to.data_dir, { recursive: true })
  const path = join(one.to.data_dir, 'master-key')
  await writeFile(path, randomBytes(32).toString('base64'), { mode: 0o600 })
  await assert.rejects(migrateData(one.from, one.to, quiet), {
    name: 'Failure',
    message: /\([0-9a-f]{16}\) is not the source's/,
  })
})

test('from a shell, both sides are configuration files or DATABASE+BLOBS', async () => {
  await using one = await left()
  const file = join(one.service.folder, 'offpeak.yaml')
  const target = `sqlite:${one.folder}/elsewhere.db+disk:${one.folder}/blobs`
  const offpeak = (...args: string[]) =>
    runOffpeak(['migrate-data', ...args], {
      launch: launchOnly({
        loadConfig: ({ config, ...overrides }) => loadConfig({ file: config, env: {}, overrides }),
        adminCommands: async () => adminCommands(() => undefined),
      }),
    })
  const data = one.from.data_dir
  const wrong = await offpeak('--from', 'sqlite+disk', '--to', 'nowhere', '--data', data)
  assert.deepEqual([wrong.code, wrong.err.includes('is neither a configuration file that exists')], [1, true])
  const none = await offpeak('--from', 'sqlite+disk', '--to', 'postgres+s3', '--data', data)
  assert.match(none.err, /^offpeak: --to: the configuration names no database of the kind postgres \(/)
  const same = await offpeak('--from', file, '--to', 'sqlite+disk', '--data', data)
  assert.match(same.err, /source and target are the same database/)

  const { code, out, err } = await offpeak('--from', 'sqlite+disk', '--to', target, '--data', data)
  assert.equal(code, 0, err)
  assert.match(out, /^Moved and compared: \d+ rows, \d+ blobs \(.*\), \d+ decrypted at the target\.\n/)
  const store = await openDatabase(
    loadConfig({ env: {}, overrides: { database: target.split('+')[0], data } }),
  )
  assert.equal((await store.read.selectFrom('batches').select('id').execute()).length, 2)
  await store.close()
  const released = await offpeak('--from', 'sqlite+disk', '--release', '--data', data)
  assert.deepEqual([released.code, released.out], [0, ''])
})

describe('to PostgreSQL and a bucket, and back', { skip: withoutPostgres }, () => {
  let shared: SharedStorage
  before(async () => {
    shared = await sharedStorage()
  })
  after(() => shared[Symbol.asyncDispose]())

  test('everything arrives, and the service goes on there', async () => {
    await using one = await left()
    const storage = await shared.make()
    const key = (await masterKey(one.from, one.service.stores.store)).secret.export().toString('base64')
    const env = { ...storage.env, OFFPEAK_MASTER_KEY: key }
    const file = join(one.folder, 'target.yaml')
    await writeFile(file, storage.yaml)
    const to = loadConfig({ file, env, overrides: { data: join(one.folder, 'data') } })
    const moved = await migrateData({ ...one.from, master_key: key }, to, quiet)
    assert.ok(moved.rows > 20 && moved.opened === moved.blobs)

    const back = loadConfig({ env, overrides: { data: join(one.folder, 'back') } })
    const returned = await migrateData(to, back, quiet)
    assert.deepEqual([returned.rows, returned.blobs, returned.bytes], [moved.rows, moved.blobs, moved.bytes])
    const stores = await openStores(back)
    assert.deepEqual((await reconcile(stores)).mismatches, [])
    await stores.store.close()

    await adminCommands(() => undefined).releaseMoved(to)
    await one.assertArrived({ ...storage, env })
  })
})
