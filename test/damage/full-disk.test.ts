// A disk that is full, then has room again: real processes on a small file system of their own.
import assert from 'node:assert/strict'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { test } from 'node:test'
import { DiskBlobs } from '../../src/blobs/disk/disk-blobs.ts'
import { writeWhole } from '../../src/cli/output-file.ts'
import { failureText } from '../../src/cli/terminal/failure.ts'
import { ensureFirstKeys } from '../../src/compose/keys.ts'
import { ServedListings } from '../../src/compose/served-listings.ts'
import { openDatabase } from '../../src/compose/stores.ts'
import { loadConfig } from '../../src/config/load.ts'
import { copySqlite } from '../../src/store/sqlite/database.ts'
import { SmallDisk, withoutDisk } from '../fakes/small-disk.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { CrashTest } from '../support/crash-processes.ts'
import { until } from '../support/offpeak-process.ts'

const COUNT = 40

test('a full disk refuses uploads and loses nothing; with room again, the batch goes on by itself', {
  skip: withoutDisk,
  timeout: 60_000,
}, async () => {
  await using crash = await CrashTest.begin('', '1s', '20s')
  using disk = new SmallDisk(join(crash.folder, 'data'))
  const service = await crash.start('serve')
  crash.blockUnless((content) => Number(content.slice(1)) < 12)
  const { id } = await crash.batchOf(COUNT)
  await crash.committed(id, 12)
  disk.fill()
  crash.answerAll()
  await crash.upstream.arrived(COUNT)
  await until(() => /ENOSPC|disk is full|failed; trying again/.test(service.log))
  // It can still be read, and says what it cannot do.
  const code = async () => ((await crash.batch(id)).waiting_reason as { code: string } | null)?.code
  await until(async () => (await code()) === 'storage_failing')
  assert.equal((await crash.batch(id)).status, 'in_progress')
  await assert.rejects(crash.batchOf(10_000), /50[03]/)
  disk.empty()
  const batch = await crash.completed(id)
  await crash.checkResults(batch, COUNT)
  assert.equal(crash.sent(1).length, COUNT)
  assert.equal(await service.end('SIGTERM'), 0, service.log)
})

test('a command that finds no room for its files names the file and says what to do', {
  skip: withoutDisk,
}, async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-full-'))
  t.after(() => rm(folder, { recursive: true }))
  const [small, from] = [join(folder, 'small'), join(folder, 'from.db')]
  using database = new DatabaseSync(from)
  database.exec('CREATE TABLE t (a)')
  using disk = new SmallDisk(small)
  disk.fill()
  const told = async (work: Promise<unknown>) => failureText(await work.then(String, (error) => error), false)
  const output = join(small, 'answers.jsonl')
  assert.equal(
    await told(writeWhole(output, ['text'])),
    `offpeak: no space is left on the disk (free some, or choose another place): ${output}`,
  )
  assert.match(
    await told(copySqlite(from, join(small, 'copy.db'))),
    /^offpeak: the database .*copy.db cannot grow: its disk is full .* Free space there/,
  )
  assert.match(
    await told(new DiskBlobs(join(small, 'blobs')).put('a', [Buffer.from('text')])),
    /^offpeak: blob store failed .* no space left on device.*; free space there$/,
  )
})

test('a first start that finds no room leaves neither its key nor other temporary files behind', {
  skip: withoutDisk,
}, async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-full-'))
  t.after(() => rm(folder, { recursive: true }))
  const data = join(folder, 'data')
  await using upstream = await testUpstream()
  upstream.models = [{ id: 'm' }]
  const models = `[{id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}"}]}]`
  const env = { OFFPEAK_DATABASE: `sqlite:${join(folder, 'offpeak.db')}`, OFFPEAK_MODELS: models }
  const config = loadConfig({ env, overrides: { data } })
  using disk = new SmallDisk(data)
  disk.fill()
  const before = await readdir(data)
  const store = await openDatabase(config)
  await assert.rejects(ensureFirstKeys(config, store), /no space left/)
  await new ServedListings(data, store.clock).ask(config)
  await store.close()
  assert.deepEqual(await readdir(data), before)
})
