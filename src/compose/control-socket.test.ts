import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { askToReload } from './control-socket.ts'

test('a folder of sockets that cannot be read is told apart from one where no service runs', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-control-'))
  t.after(() => rmSync(folder, { recursive: true }))
  assert.equal((await askToReload(folder)).size, 0)
  // A folder of another user is closed to everyone but root.
  writeFileSync(join(folder, 'control'), '')
  await assert.rejects(askToReload(folder), { code: 'ENOTDIR', path: join(folder, 'control') })
})
