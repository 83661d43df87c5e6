import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'node:test'
import { makeFolder, syncFolder } from './folders.ts'

test('a folder is made with those above it, for its owner alone', (t) => {
  const base = mkdtempSync(join(tmpdir(), 'offpeak-folder-'))
  t.after(() => rmSync(base, { recursive: true }))
  assert.equal(makeFolder(join(base, 'a/b/c')), join(base, 'a'))
  assert.equal(makeFolder(join(base, 'a/b/c')), undefined)
  assert.equal(makeFolder(join(base, 'a/d')), join(base, 'a/d'))
  assert.equal(statSync(join(base, 'a/b')).mode & 0o777, 0o700)
  writeFileSync(join(base, 'file'), '')
  assert.throws(() => makeFolder(join(base, 'file')), { code: 'EEXIST', path: join(base, 'file') })
  assert.throws(() => makeFolder(join(base, 'file/below')), { code: 'ENOTDIR' })
})

test('a file system that makes no folders is told, not asked for ever', {
  skip: process.platform !== 'linux',
}, () => {
  assert.throws(() => makeFolder('/proc/offpeak/data'), { code: 'ENOENT', path: '/proc/offpeak' })
})

test('a folder of a file system that syncs none is left as it is', {
  skip: process.platform !== 'linux',
}, async () => {
  await syncFolder('/proc')
  await assert.rejects(syncFolder('/proc/offpeak'), { code: 'ENOENT' })
})
