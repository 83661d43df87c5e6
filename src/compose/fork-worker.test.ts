import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'node:test'
import { childrenOf, until } from '../../test/support/offpeak-process.ts'
import type { Config } from '../config/config.ts'
import { loadConfig } from '../config/load.ts'
import { forkWorkers, shareOf, workerCount } from './fork-worker.ts'

function configOf(models: string, env: Record<string, string> = {}) {
  return loadConfig({ env: { OFFPEAK_MODELS: models, ...env }, cwd: import.meta.dirname })
}

const two = `[{id: m, upstreams: [{type: sim, concurrency_max: 9}, {type: sim, name: b, concurrency_max: 3}]}]`

test('there is one worker for every four cores, one at least and four at most', () => {
  const config = configOf('[{id: m, upstreams: [{type: sim}]}]')
  assert.deepEqual(
    [1, 2, 4, 7, 8, 16, 128].map((cores) => workerCount(config, cores)),
    [1, 1, 1, 1, 2, 4, 4],
  )
})

test('there are no more workers than the smallest concurrency of an upstream', () => {
  assert.equal(workerCount(configOf(two), 128), 3)
})

test('a configured number is used as it is, and auto can be written out', () => {
  assert.equal(workerCount(configOf(two, { OFFPEAK_WORKER_PROCESSES: '7' }), 1), 7)
  assert.equal(workerCount(configOf(two, { OFFPEAK_WORKER_PROCESSES: 'auto' }), 1), 1)
  assert.throws(() => configOf(two, { OFFPEAK_WORKER_PROCESSES: '0' }), /from 1 to 64, or auto/)
})

test('workers divide the configured bounds between them', () => {
  const config = configOf(two, { OFFPEAK_WORKER_CONCURRENCY_MAX: '100', OFFPEAK_WORKER_MEMORY: '64MiB' })
  const share = shareOf(config, 4)
  assert.equal(share.worker.concurrency_max, 25)
  assert.equal(share.worker.memory_bytes, 16 * 2 ** 20)
  assert.deepEqual(
    share.models[0]?.upstreams.map((one) => one.concurrency_max),
    [3, 1],
  )
  assert.equal(shareOf(config, 1), config)
})

test('a worker process that is starting takes a reload, and is asked for its metrics', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-fork-'))
  t.after(() => rm(folder, { recursive: true }))
  const ofModel = (id: string): Config => {
    const env = { OFFPEAK_MODELS: `[{id: ${id}, upstreams: [{type: sim}]}]` }
    return loadConfig({ env, overrides: { data: folder, log_level: 'silent' }, cwd: folder })
  }
  const workers = forkWorkers(1)
  try {
    const begun = workers.begin(ofModel('first'), { info() {}, warn() {}, error() {} })
    workers.reload(ofModel('second'))
    await workers.metrics()
    await begun
    const metrics = JSON.stringify(await workers.metrics())
    assert.match(metrics, /"model":"second"/)
  } finally {
    await workers.stop()
  }
})

test('a worker process that has exited before it gets its configuration is told, and not waited for', async () => {
  const others = new Set(childrenOf(process))
  const workers = forkWorkers(1)
  const own = childrenOf(process).filter((pid) => !others.has(pid))
  for (const pid of own) process.kill(pid, 'SIGKILL')
  await until(() => childrenOf(process).every((pid) => !own.includes(pid)))
  const begun = workers.begin(configOf(two), { info() {}, warn() {}, error() {} })
  await assert.rejects(begun, /the worker process exited with SIGKILL during its start/)
})
