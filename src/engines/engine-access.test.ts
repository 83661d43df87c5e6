import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { createServer } from 'node:net'
import { after, describe, test } from 'node:test'
import { listen } from '../../test/support/listen.ts'
import { type FindListener, findByLsof, findInProc, freePort, type Owner } from './engine-access.ts'

const LISTENS = `require('node:net').createServer().listen(Number(process.argv[1]), '127.0.0.1', () => console.log(process.pid))`
const started: number[] = []
after(() => {
  for (const pid of started) process.kill(pid, 'SIGKILL')
})

/** A shell that leads its session, as the guard does, and starts a process that listens on the port. */
async function listening(port: number, session = ''): Promise<Owner> {
  const tag = `tag-${port}`
  const script = `OFFPEAK_ENGINE=${tag} ${session} "$0" -e "$1" "$2" & wait`
  const shell = spawn('/bin/sh', ['-c', script, process.execPath, LISTENS, String(port)], {
    detached: true,
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  const [pid] = await once(shell.stdout, 'data')
  started.push(Number(pid))
  return { pid: shell.pid, tag }
}

async function whose(find: FindListener, port: number, owner: Owner): Promise<string> {
  const found = await find(port, owner)
  if (found === null) return 'nobody'
  return (await found.isOwned()) ? 'own' : 'other'
}

const hasLsof = spawnSync('lsof', ['-v']).error === undefined
const ways: [name: string, find: FindListener, skip: boolean][] = [
  ['/proc', findInProc, !existsSync('/proc/net/tcp')],
  ['lsof', findByLsof, !hasLsof],
]

for (const [name, find, skip] of ways)
  describe(`whose port it is, by ${name}`, { skip }, () => {
    test('nobody, then a process that the owner has started, and of no one else', async () => {
      const port = await freePort()
      assert.equal(await whose(find, port, { pid: process.pid, tag: '' }), 'nobody')
      const owner = await listening(port)
      assert.equal(await whose(find, port, owner), 'own')
      const other = await listening(await freePort())
      assert.equal(await whose(find, port, other), 'other')
      assert.equal((await find(port, owner))?.id, (await find(port, other))?.id)
    })

    test('another process that was faster', async () => {
      await using server = await listen(createServer())
      const owner = await listening(await freePort())
      assert.equal(await whose(find, server.port, owner), 'other')
    })
  })

test('a process that has left the session is known by its mark', {
  skip: !existsSync('/proc/net/tcp') || spawnSync('setsid', ['true']).error !== undefined,
}, async () => {
  const port = await freePort()
  const owner = await listening(port, 'setsid')
  assert.equal(await whose(findInProc, port, owner), 'own')
  assert.equal(await whose(findInProc, port, { ...owner, tag: 'another' }), 'other')
})
