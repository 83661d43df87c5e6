// A disk that is full, then has room again: real processes on a small file system of their own.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { SmallDisk, withoutDisk } from '../fakes/small-disk.ts'
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
