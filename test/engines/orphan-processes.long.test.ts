// However the service ends, none of its processes survives.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { describe, test } from 'node:test'
import { CrashTest } from '../support/crash-processes.ts'
import { childrenOf, isAlive, until } from '../support/offpeak-process.ts'

/** Longer than any of these tests. */
const DRAIN = '60s'

async function underWay(crash: CrashTest): Promise<void> {
  crash.blockUnless(() => false)
  await crash.batchOf(5)
  await crash.upstream.arrived(5)
}

describe('no orphan process remains', {
  concurrency: 3,
  timeout: 60_000,
  skip: !existsSync('/proc/self/stat'),
}, () => {
  test('a second SIGTERM ends the service and its worker at once, whatever is in flight', async () => {
    await using crash = await CrashTest.begin('', DRAIN)
    const service = await crash.start('serve')
    const workers = childrenOf(service.child)
    assert.ok(workers.length > 0)
    await underWay(crash)
    const url = await service.url
    // Now that somebody looks, it goes on answering for a while, and can be seen to stop.
    assert.equal((await fetch(`${url}/readyz`)).status, 200)
    service.child.kill('SIGTERM')
    await until(async () => (await fetch(`${url}/readyz`)).status === 503)
    assert.ok(workers.every(isAlive))
    assert.equal(await service.end('SIGTERM'), 130)
    await until(() => !workers.some(isAlive))
  })

  test('a worker whose API was killed ends by itself, once lines in flight have had their time', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const service = await crash.start('serve')
    const workers = childrenOf(service.child)
    assert.ok(workers.length > 0)
    await underWay(crash)
    await service.end('SIGKILL')
    await until(() => !workers.some(isAlive))
  })

  test('a service whose npm gets SIGTERM drains and exits', async () => {
    await using crash = await CrashTest.begin('', '200ms')
    const shell = crash.launchUnderNpm(['serve', '--data', 'data', '--config', 'offpeak.yaml', '--port', '0'])
    assert.ok(shell.stdout)
    await once(shell.stdout, 'data')
    const [service] = childrenOf(shell)
    assert.ok(service)
    shell.kill('SIGTERM')
    await once(shell, 'exit')
    await until(() => !isAlive(service))
  })
})
