// A disk that nobody may write to any more, as the system makes it after an error: real processes on a small file
// system of their own.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { SmallDisk, withoutDisk } from '../fakes/small-disk.ts'
import { CrashTest } from '../support/crash-processes.ts'
import { until } from '../support/offpeak-process.ts'

const COUNT = 40
const SOME = 12

test('results cannot be written for a while: nothing is lost, and the batch goes on by itself', {
  skip: withoutDisk,
}, async () => {
  await using crash = await CrashTest.begin('', '1s', '20s')
  using disk = new SmallDisk(join(crash.folder, 'data/blobs'))
  const service = await crash.start('serve')
  crash.blockUnless((content) => Number(content.slice(1)) < SOME)
  const { id } = await crash.batchOf(COUNT)
  await crash.committed(id, SOME)
  await disk.freeze()
  crash.answerAll()
  await until(() => /EROFS.*failed; trying again/.test(service.log))
  assert.equal((await crash.batch(id)).status, 'in_progress')
  await assert.rejects(crash.batchOf(1), /50[03].*"error"/)
  disk.thaw()
  const batch = await crash.completed(id)
  await crash.checkResults(batch, COUNT)
  assert.equal(crash.sent(1).length, COUNT)
  assert.equal(await service.end('SIGTERM'), 0, service.log)
})

test('on a disk that may not be written to, nothing starts and it says why; afterwards the batch goes on', {
  skip: withoutDisk,
}, async () => {
  await using crash = await CrashTest.begin('', '1s', '20s')
  using disk = new SmallDisk(join(crash.folder, 'data'))
  const first = await crash.start('serve')
  crash.blockUnless((content) => Number(content.slice(1)) < SOME)
  const { id } = await crash.batchOf(COUNT)
  await crash.committed(id, SOME)
  await first.endGroup('SIGKILL')
  await disk.freeze()
  await assert.rejects(
    crash.start('serve'),
    /offpeak: the database \S+ (may not be written to|cannot be opened) \(/,
  )
  disk.thaw()
  crash.answerAll()
  const again = await crash.start('serve')
  const batch = await crash.completed(id)
  await crash.checkResults(batch, COUNT)
  assert.ok(crash.sent(1).length >= SOME)
  assert.equal(await again.end('SIGTERM'), 0, again.log)
})
