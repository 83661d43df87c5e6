// The first keys of a service, written by its first start.
import assert from 'node:assert/strict'
import { mkdtempDisposable } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { OffpeakProcess } from '../support/offpeak-process.ts'

/** For `node --import`: on a slow disk, says when a key is in its file and when the API begins to listen. */
const SLOW_DISK = `
import fs from 'node:fs/promises'
import { Server } from 'node:net'
import { syncBuiltinESMExports } from 'node:module'
import { setTimeout } from 'node:timers/promises'
const { link } = fs
const { listen } = Server.prototype
fs.link = async (from, to) => {
  await setTimeout(500)
  await link(from, to)
  if (to.includes('api-key')) console.error('linked a key')
}
Server.prototype.listen = function (...args) {
  if (args[0]?.port !== undefined) console.error('listens')
  return listen.apply(this, args)
}
syncBuiltinESMExports()`

test('a service answers its first caller when its keys are in their files', async () => {
  await using folder = await mkdtempDisposable(join(tmpdir(), 'offpeak-first-keys-'))
  const preload = `data:text/javascript,${encodeURIComponent(SLOW_DISK)}`
  const service = new OffpeakProcess(['serve', '--data', folder.path, '--port', '0'], {
    env: { NODE_OPTIONS: `--import=${preload}` },
  })
  try {
    await service.ready
    const order = service.said.filter((line) => /^(linked a key|listens)$/.test(line))
    assert.deepEqual(order, ['linked a key', 'linked a key', 'listens'])
  } finally {
    await service.endGroup('SIGKILL')
  }
})
