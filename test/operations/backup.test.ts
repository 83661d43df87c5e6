// A service is backed up while it works, and restored from what was written.
import assert from 'node:assert/strict'
import { copyFile, cp, mkdir, mkdtemp, readdir, rm, unlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { backupBlobs } from '../../src/admin/backup-blobs.ts'
import type { Finding } from '../../src/admin/examine.ts'
import type { Blobs } from '../../src/blobs/blobs.ts'
import { DiskBlobs } from '../../src/blobs/disk/disk-blobs.ts'
import { backup } from '../../src/compose/admin-commands.ts'
import { doctor } from '../../src/compose/doctor.ts'
import type { Config } from '../../src/config/config.ts'
import { loadConfig } from '../../src/config/load.ts'
import { deletePendingBlobs } from '../../src/maintenance/maintenance.ts'
import { copySqlite, replaceSqlite } from '../../src/store/sqlite/database.ts'
import { sqliteStore } from '../../src/store/sqlite/store.ts'
import { type Call, echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

/** A folder that becomes a data folder: a backup's place, and a service's that is restored from it. */
async function emptyPlace() {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-backup-'))
  const data = join(folder, 'data')
  return {
    folder,
    data,
    config: loadConfig({ env: {}, overrides: { data } }),
    [Symbol.asyncDispose]: () => rm(folder, { recursive: true, force: true }),
  }
}

async function damage(config: Config): Promise<Finding[]> {
  const findings: Finding[] = []
  await using found = await doctor(config)
  await found.examine({ quick: false, tell: (finding) => findings.push(finding) })
  return findings
}

test('a service that is backed up at work goes on from there when it is restored, and bills nothing twice', async () => {
  let answerSlow = (): void => {}
  const slow = (call: Call): void => {
    if (call.body.messages[0]?.content === 'slow') answerSlow = () => echo(call)
    else echo(call)
  }
  await using upstream = await testUpstream(slow)
  const yaml = configFor(upstream.base_url).replace('lease: 2s', 'lease: 500ms')
  await using service = await TestService.start(yaml)
  const ended = await service.run([line('x')])
  const file = await service.upload([line('a'), line('slow')].map((one) => JSON.stringify(one)).join('\n'))
  const batch = await service.create(file.id)
  while ((await service.get(batch.id)).request_counts.completed < 1) {
    // Each question takes a round trip.
  }
  await upstream.arrived(3)
  await using place = await emptyPlace()
  const done = await backup(service.config, place.data)
  assert.deepEqual(done.missing, [])
  assert.equal(done.copied, done.blobs)
  assert.ok(!(await readdir(place.data)).includes('master-key'))
  answerSlow()
  assert.equal((await service.ended(batch.id)).request_counts.completed, 2)

  upstream.reply = echo
  await copyFile(join(service.config.data_dir, 'master-key'), join(place.data, 'master-key'))
  assert.deepEqual(await damage(place.config), [])
  await using restored = await TestService.start(yaml, { folder: place.folder })
  restored.key = service.key
  const again = await restored.ended(batch.id)
  assert.deepEqual([again.status, again.cost_usd], ['completed', (await service.get(batch.id)).cost_usd])
  assert.equal(upstream.calls.length, 4, 'only the line that was in flight is sent again')
  const text = await service.content(ended.output_file_id)
  assert.equal(await restored.content(ended.output_file_id), text)
})

test('single requests of an open batch are in a backup, and go on where it is restored', async () => {
  await using upstream = await testUpstream(echo)
  const yaml = configFor(upstream.base_url, 'requests: {gather: {seconds: 1}}')
  await using service = await TestService.start(yaml, { worker: false })
  const body = { model: 'm', messages: [{ role: 'user', content: 'a' }], max_tokens: 5 }
  const order = { endpoint: '/v1/chat/completions', body }
  const { id, batch_id } = await service.json<{ id: string; batch_id: string }>('POST', '/v1/requests', order)
  await using place = await emptyPlace()
  assert.deepEqual((await backup(service.config, place.data)).missing, [])
  await copyFile(join(service.config.data_dir, 'master-key'), join(place.data, 'master-key'))
  assert.deepEqual(await damage(place.config), [])
  await using restored = await TestService.start(yaml, { folder: place.folder })
  restored.key = service.key
  const { status } = await restored.json<{ status: string }>('GET', `/v1/requests/${id}?wait=30s`)
  assert.deepEqual([status, (await restored.ended(batch_id)).status], ['completed', 'completed'])
})

test('a backup is brought up to date by what is new, and loses what was deleted', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const first = await service.run([line('a')])
  await using place = await emptyPlace()
  const before = await backup(service.config, place.data)
  const second = await service.run([line('b')])
  await service.json('DELETE', `/v1/files/${first.input_file_id}`)
  const after = await backup(service.config, place.data)
  assert.ok(before.copied === before.blobs && after.copied < after.blobs && after.copied > 0)
  assert.equal(after.removed, 3, 'content, index and index of IDs')
  await copyFile(join(service.config.data_dir, 'master-key'), join(place.data, 'master-key'))
  assert.deepEqual(await damage(place.config), [])
  await using restored = await TestService.start(configFor(upstream.base_url), { folder: place.folder })
  restored.key = service.key
  assert.equal((await restored.get(second.id)).status, 'completed')
})

test('content that is deleted between database and blobs does not tear the backup', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a')])
  await service.run([line('b')])
  await service.worker.stop()
  await using place = await emptyPlace()
  const { store, blobs, sealed } = service.stores
  const { database } = service.config
  assert(database.kind === 'sqlite')
  const path = join(place.folder, 'offpeak.db')
  const next = `${path}.next`
  let copies = 0
  const copyDatabase = async () => {
    await copySqlite(database.path, next)
    if (++copies === 1) {
      await service.json('DELETE', `/v1/files/${batch.output_file_id}`)
      await deletePendingBlobs(store, sealed)
    }
    return sqliteStore({ path: next })
  }
  const publish = async () => {
    await replaceSqlite(next, path)
    return sqliteStore({ path })
  }
  const to = new DiskBlobs(join(place.folder, 'blobs'))
  const done = await backupBlobs({ from: blobs, to, live: store, copyDatabase, publish })
  assert.deepEqual([copies, done.missing], [2, []])
  const copied = sqliteStore({ path })
  const rows = await copied.read
    .selectFrom('blobs')
    .select('key')
    .where('deletion_pending_since', 'is', null)
    .execute()
  assert.equal(rows.length, done.blobs)
  for (const { key } of rows) assert.equal(await to.size(key), await blobs.size(key))
  await copied.close()
})

test('what the service itself has lost is named, and the rest is backed up', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  await service.run([line('a')])
  service.tampered = true
  await using place = await emptyPlace()
  assert(service.config.blobs.kind === 'disk')
  const { key } = await service.stores.store.read
    .selectFrom('blobs')
    .select('key')
    .where('key', 'like', '%output')
    .executeTakeFirstOrThrow()
  await unlink(join(service.config.blobs.root, 'objects', key))
  const done = await backup(service.config, place.data)
  assert.deepEqual(done.missing, [key])
  assert.equal(done.copied, done.blobs)
})

/** Every call of a backup is counted; the one with the number `fails_at` fails, as on a full disk, and all after it. */
class FailingDisk {
  calls = 0
  readonly #fails_at: number

  constructor(fails_at: number) {
    this.#fails_at = fails_at
  }

  readonly step = (): void => {
    if (++this.calls >= this.#fails_at) throw new Error('no space is left')
  }

  wrap(blobs: Blobs): Blobs {
    const { step } = this
    return {
      async put(key, source) {
        step()
        const bytes = await blobs.put(key, source)
        step()
        return bytes
      },
      read: (key, range) => blobs.read(key, range),
      async size(key) {
        step()
        return await blobs.size(key)
      },
      async delete(key) {
        step()
        await blobs.delete(key)
        step()
      },
      async *list(prefix) {
        for await (const one of blobs.list(prefix)) {
          step()
          yield one
        }
      },
    }
  }
}

test('a backup that fails, at whatever step, leaves the one before whole, or is whole itself', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const first = await service.run([line('a')])
  await using place = await emptyPlace()
  await backup(service.config, place.data)
  await copyFile(join(service.config.data_dir, 'master-key'), join(place.data, 'master-key'))
  const second = await service.run([line('b')])
  await service.json('DELETE', `/v1/files/${first.input_file_id}`)
  await service.worker.stop()
  await deletePendingBlobs(service.stores.store, service.stores.sealed)
  const { store, blobs } = service.stores
  const { database } = service.config
  assert(database.kind === 'sqlite')
  const seen = { before: 0, after: 0 }
  for (let fails_at = 1, failed = true; failed; fails_at++) {
    await using trial = await emptyPlace()
    await cp(place.data, trial.data, { recursive: true })
    const path = join(trial.data, 'offpeak.db')
    const next = `${path}.next`
    const disk = new FailingDisk(fails_at)
    const attempt = backupBlobs({
      from: blobs,
      to: disk.wrap(new DiskBlobs(join(trial.data, 'blobs'))),
      live: store,
      async copyDatabase() {
        disk.step()
        await copySqlite(database.path, next)
        disk.step()
        return sqliteStore({ path: next })
      },
      async publish() {
        disk.step()
        assert.ok(await replaceSqlite(next, path))
        disk.step()
        return sqliteStore({ path })
      },
    })
    failed = await attempt.then(
      () => false,
      () => true,
    )
    assert.deepEqual(await damage(trial.config), [], `after a failure at step ${fails_at}`)
    const restored = sqliteStore({ path })
    const batches = (await restored.read.selectFrom('batches').select('id').execute()).map(({ id }) => id)
    await restored.close()
    assert.ok(batches.includes(first.id))
    if (batches.includes(second.id)) seen.after++
    else seen.before++
    if (fails_at % 8 !== 0) continue
    assert.deepEqual((await backup(service.config, trial.data)).missing, [])
    assert.deepEqual(await damage(trial.config), [], 'after a second try')
  }
  assert.ok(seen.before > 10 && seen.after > 5, JSON.stringify(seen))
})

test('what is only in the log of the backup before is not lost, and a backup in use is left alone', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const { id } = await service.run([line('a')])
  await using place = await emptyPlace()
  await backup(service.config, place.data)
  const path = join(place.data, 'offpeak.db')
  const used = sqliteStore({ path })
  await used.write((tx) => tx.updateTable('batches').set({ metadata: '{"kept":"yes"}' }).execute())
  await assert.rejects(backup(service.config, place.data), /a process uses \S+offpeak\.db/)
  assert.equal(
    (await used.read.selectFrom('batches').select('metadata').executeTakeFirst())?.metadata,
    '{"kept":"yes"}',
  )
  await used.close()
  await backup(service.config, place.data)
  const copied = sqliteStore({ path })
  const rows = await copied.read.selectFrom('batches').select(['id', 'metadata']).execute()
  assert.deepEqual(
    rows.map((row) => row.id),
    [id],
  )
  assert.notEqual(rows[0]?.metadata, '{"kept":"yes"}')
  await copied.close()
})

test('of two backups to one place at once, the second is refused', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  await service.run([line('a')])
  await using place = await emptyPlace()
  const outcomes = await Promise.allSettled([
    backup(service.config, place.data),
    backup(service.config, place.data),
  ])
  assert.deepEqual(outcomes.map(({ status }) => status).sort(), ['fulfilled', 'rejected'])
  const refused = outcomes.find((one) => one.status === 'rejected')
  assert.match(String(refused?.reason), /another backup to \S+ is running/)
  await backup(service.config, place.data)
})

test('nobody is told that a PostgreSQL was backed up, or a folder onto itself', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const postgres = { ...service.config, database: { kind: 'postgres', url: 'postgres://db/x' } } as const
  await assert.rejects(backup(postgres, '/nowhere'), { name: 'Failure', message: /docs\/backup\.md/ })
  await assert.rejects(backup(service.config, service.config.data_dir), /must not be the data folder/)
  await using place = await emptyPlace()
  const root = join(place.data, 'blobs')
  const apart = { ...service.config, blobs: { kind: 'disk', root } } as const
  await mkdir(root, { recursive: true })
  for (const folder of [place.data, root, join(root, 'objects', 'backup')])
    await assert.rejects(backup(apart, folder), /would mix with the blobs of the service/, folder)
})
