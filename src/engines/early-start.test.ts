import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { EarlyStart } from './early-start.ts'

const HEIR = fileURLToPath(new URL('../../test/fakes/engine-heir.ts', import.meta.url))

const folder = mkdtempSync(join(tmpdir(), 'offpeak-early-'))
after(() => rmSync(folder, { recursive: true, force: true }))

test('another process takes over an engine with what it has said, and learns how it ends', async () => {
  const command = ['/bin/sh', '-c', 'echo begun; read -r _ < "$0"; echo on {port}; exit 3', '/dev/null']
  const spec = {
    command,
    env: {},
    pass_env: [],
    files: {},
    ready: '/health',
    start_timeout_ms: 1,
    idle_timeout_ms: 1,
    gpus: 0,
    memory_bytes: 0,
  }
  const early = await EarlyStart.begin(spec, 'm', join(folder, 'engines', 'm.log'), 5)
  // It has said something, and has exited perhaps.
  await once(early.ends[1], 'readable')
  const heir = fork(HEIR, { stdio: ['ignore', 'ignore', 'inherit', 'ipc', ...early.ends] })
  const inheritance = early.handOver()
  assert.equal(inheritance.at, 5)
  heir.send(inheritance)
  const [told] = await once(heir, 'message')
  assert.deepEqual(told, { how: 'exited with 3' })
  await once(heir, 'exit')
  const output = readFileSync(join(folder, 'engines', 'm.log'), 'utf8')
  assert.equal(output, `begun\non ${inheritance.place.port}\n`)
})
