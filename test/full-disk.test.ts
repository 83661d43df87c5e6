// A disk that is full, then has room again: real processes on a small file system of their own.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { CrashTest, until } from './crash-processes.ts'

const COUNT = 40
const DISK = '24m'

/** Why there can be no small disk here; false where there can. */
const withoutDisk: string | false = await (async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-disk-'))
  try {
    mount(folder)
    unmount(folder)
    return false
  } catch {
    return 'mounting a small file system needs root'
  } finally {
    rmSync(folder, { recursive: true })
  }
})()

function mount(folder: string): void {
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${DISK}`, 'offpeak', folder], { stdio: 'ignore' })
}

function unmount(folder: string): void {
  execFileSync('umount', ['-l', folder], { stdio: 'ignore' })
}

/** Takes all the room that is left, to the last byte. */
function fill(path: string): void {
  for (let bytes = 1 << 20; bytes > 0; bytes >>= 1)
    try {
      for (;;) writeFileSync(path, Buffer.alloc(bytes, 1), { flag: 'a' })
    } catch (error) {
      assert.match(String(error), /ENOSPC/)
    }
}

test('a full disk refuses uploads and loses nothing; with room again, the batch goes on by itself', {
  skip: withoutDisk,
  timeout: 60_000,
}, async () => {
  await using crash = await CrashTest.begin()
  const data = join(crash.folder, 'data')
  mkdirSync(data)
  mount(data)
  try {
    const service = await crash.start('serve')
    crash.holdUnless((content) => Number(content.slice(1)) < 12)
    const { id } = await crash.batchOf(COUNT)
    await crash.committed(id, 12)
    fill(join(data, 'filler'))
    crash.answerAll()
    await crash.upstream.arrived(COUNT)
    await until(() => /ENOSPC|disk is full|failed; trying again/.test(service.log()))
    // It can still be read, and says what it cannot do.
    assert.equal((await crash.batch(id)).status, 'in_progress')
    await assert.rejects(crash.batchOf(10_000), /50[03]/)
    rmSync(join(data, 'filler'))
    const batch = await crash.completed(id)
    await crash.checkResults(batch, COUNT)
    assert.equal(crash.sent(1).length, COUNT)
    assert.equal(await service.end('SIGTERM'), 0, service.log())
  } finally {
    unmount(data)
  }
})
