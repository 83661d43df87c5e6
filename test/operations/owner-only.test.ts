// Nobody else on the machine reads what a service stores: real processes under a umask that takes nothing away.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { chmod, mkdir, mkdtemp, readdir, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { backup } from '../../src/compose/admin-commands.ts'
import { closeToOthers, openStores } from '../../src/compose/stores.ts'
import type { Config } from '../../src/config/config.ts'
import { loadConfig } from '../../src/config/load.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const FOLDER = 0o700
const FILE = 0o600

/** Every path under `folder`, it included, whose mode is another. */
async function openPaths(folder: string): Promise<string[]> {
  const names = await readdir(folder, { recursive: true })
  const wrong: string[] = []
  for (const path of [folder, ...names.map((name) => join(folder, name))]) {
    const found = await stat(path)
    const mode = found.mode & 0o7777
    if (mode !== (found.isDirectory() ? FOLDER : FILE)) wrong.push(`${path} ${mode.toString(8)}`)
  }
  return wrong
}

describe('what a service stores', { skip: process.platform === 'win32' && 'there are no such modes' }, () => {
  let folder: string
  let umask: number
  before(async () => {
    umask = process.umask(0)
    folder = await mkdtemp(join(tmpdir(), 'offpeak-modes-'))
  })
  after(async () => {
    process.umask(umask)
    await rm(folder, { recursive: true, force: true })
  })

  const configAt = (name: string): Config =>
    loadConfig({ env: {}, overrides: { data: join(folder, name, 'data'), log_level: 'silent' } })

  test('is closed to other users from the start, at work and in its backups', async () => {
    await using upstream = await testUpstream(echo)
    await using service = await TestService.start(configFor(upstream.base_url))
    await service.run([line('a')])
    const { data_dir } = service.config
    for (const name of ['offpeak.db', 'offpeak.db-wal', 'offpeak.db-shm', 'master-key', 'blobs/objects'])
      await stat(join(data_dir, name))
    assert.deepEqual(await openPaths(data_dir), [])
    const copy = join(service.folder, 'backup')
    await backup(service.config, copy)
    assert.deepEqual(await openPaths(copy), [])
    // A folder that was there, such as that of a mounted disk, stays as its owner has made it; what is put there is closed.
    const theirs = join(service.folder, 'theirs')
    await mkdir(theirs, { mode: 0o755 })
    await backup(service.config, theirs)
    assert.deepEqual(await openPaths(theirs), [`${theirs} 755`])
  })

  test('includes the code that Node has compiled', async () => {
    const cache = join(folder, 'cache')
    const bin = fileURLToPath(new URL('../../bin/offpeak.js', import.meta.url))
    await promisify(execFile)(process.execPath, [bin, 'status', '--help'], { env: { XDG_CACHE_HOME: cache } })
    const folders = (await readdir(cache)).map((name) => join(cache, name))
    assert.equal(folders.length, 1)
    for (const name of [cache, ...folders]) assert.equal((await stat(name)).mode & 0o7777, FOLDER, name)
  })

  test('is closed at the start where an earlier version or a copy left it open', async () => {
    const config = configAt('open')
    assert(config.database.kind === 'sqlite' && config.blobs.kind === 'disk')
    const first = await openStores(config)
    await first.blobs.put('a/b', [Buffer.from('x')])
    const files = ['', '-wal', '-shm'].map(
      (rest) => `${config.database.kind === 'sqlite' ? config.database.path : ''}${rest}`,
    )
    for (const path of files) await chmod(path, 0o644)
    for (const path of [config.data_dir, config.blobs.root]) await chmod(path, 0o755)
    const open = closeToOthers(config)
    assert.deepEqual(
      open.map(({ path, mode, kept_open }) => [path, mode, kept_open]),
      [
        [config.data_dir, '0755', null],
        [config.blobs.root, '0755', null],
        ...files.map((path) => [path, '0644', null]),
      ],
    )
    await first.store.close()
    for (const path of [config.data_dir, config.blobs.root]) await chmod(path, 0o755)
    await (await openStores(config)).store.close()
    assert.deepEqual(await openPaths(config.data_dir), [])
  })

  test('does not lock others out of a folder that it shares with them', async () => {
    const config = configAt('shared')
    await mkdir(join(config.data_dir, 'theirs'), { recursive: true })
    await (await openStores(config)).store.close()
    assert.equal((await stat(config.data_dir)).mode & 0o777, 0o777)
    assert.equal((await stat(join(config.data_dir, 'offpeak.db'))).mode & 0o777, FILE)
    assert.match(closeToOthers(config)[0]?.kept_open ?? '', /it contains other folders/)
  })
})
