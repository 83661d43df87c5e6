// However the service ends, no process of its engines survives.
import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { CrashTest, childrenOf, isAlive, killIfThere, until } from './support/crash-processes.ts'

const SERVER = fileURLToPath(new URL('fakes/engine-server.ts', import.meta.url))

/** A service whose engine ignores SIGTERM, has a child in a session of its own, and has been asked something. */
async function underWay(crash: CrashTest, command: 'serve' | 'worker' = 'serve') {
  const log = join(crash.folder, 'engine.log')
  const file = join(crash.folder, 'offpeak.yaml')
  const words = JSON.stringify([process.execPath, SERVER, '{port}', 'stubborn', 'child'])
  const engine = `engine: {command: ${words}, env: {ENGINE_KEY: "{api_key}", ENGINE_LOG: "${log}"}}`
  const yaml = await readFile(file, 'utf8')
  await writeFile(file, yaml.replace(/base_url: "[^"]*"/, engine))
  const api = await crash.start(command === 'serve' ? 'serve' : 'api')
  const service = command === 'serve' ? api : await crash.start('worker')
  await crash.batchOf(1, 'hang')
  const notes = (): string => (existsSync(log) ? readFileSync(log, 'utf8') : '')
  await until(() => notes().includes('request'))
  const pids = (): number[] =>
    [...notes().matchAll(/^(?:start|child) (\d+)/gm)].map((found) => Number(found[1]))
  assert.ok(pids().length === 2 && pids().every(isAlive))
  return { service, pids }
}

describe('no process of an engine remains', {
  concurrency: 3,
  timeout: 90_000,
  skip: !existsSync('/proc/self/stat'),
}, () => {
  test('after a graceful shutdown', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    await service.end('SIGTERM')
    assert.ok(!pids().some(isAlive))
  })

  test('after SIGKILL of the service', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    await service.end('SIGKILL')
    await until(() => !pids().some(isAlive))
  })

  test('after SIGKILL of the worker of a service, and of a worker of its own', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    const before = pids()
    for (const worker of childrenOf(service.child)) killIfThere(worker)
    await until(() => !before.some(isAlive))
    await service.end('SIGKILL')
    await until(() => !pids().some(isAlive))

    await using other = await CrashTest.begin('', '200ms')
    const alone = await underWay(other, 'worker')
    await alone.service.end('SIGKILL')
    await until(() => !alone.pids().some(isAlive))
  })

  test('after SIGKILL of everything at once', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const { service, pids } = await underWay(crash)
    await service.endGroup('SIGKILL')
    await until(() => !pids().some(isAlive))
  })
})
