// A service that may open few files, before a model server that would take more lines at once: real processes.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CrashTest } from '../support/crash-processes.ts'

const COUNT = 400
const FILES = 64

test('a worker that may open few files leaves some to the stores, and answers its batch', {
  skip: process.platform !== 'linux',
}, async () => {
  await using crash = await CrashTest.begin('', '1s', '10s')
  crash.blockUnless(() => false)
  const limited = ['sh', '-c', `ulimit -n ${FILES}; exec "$@"`, 'sh', process.execPath, crash.main] as const
  const service = await crash.start('serve', {}, limited)
  const { id } = await crash.batchOf(COUNT)
  await crash.holds(FILES / 4)
  crash.answerAll()
  await crash.checkResults(await crash.completed(id), COUNT)
  assert.equal(crash.sent(1).length, COUNT)
  assert.doesNotMatch(service.log, /EMFILE/)
  assert.match(service.log, /"open_files_max":64,"concurrency_max":16,"msg":"the process may open few files/)
  assert.equal(await service.end('SIGTERM'), 0, service.log)
})
