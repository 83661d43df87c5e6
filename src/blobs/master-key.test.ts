import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { chmod, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, it } from 'node:test'
import { inspect } from 'node:util'
import { MasterKeyError, masterKeyFromText, readMasterKey, readOrCreateMasterKey } from './master-key.ts'

async function temporaryFolder() {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-key-'))
  return { folder, [Symbol.asyncDispose]: () => rm(folder, { recursive: true }) }
}

describe('the master key as text', () => {
  it('is the same key in hex, base64 and base64url', () => {
    const bytes = randomBytes(32)
    const base64 = bytes.toString('base64')
    const spellings = [
      bytes.toString('hex'),
      bytes.toString('hex').toUpperCase(),
      base64,
      base64.replace('=', ''),
      bytes.toString('base64url'),
      ` ${base64}\n`,
    ]
    for (const text of spellings) {
      const key = masterKeyFromText(text, 'OFFPEAK_MASTER_KEY')
      assert.deepEqual(key.secret.export(), bytes)
      assert.equal(key.id, masterKeyFromText(base64, 'a test').id)
      assert.match(key.id, /^[0-9a-f]{16}$/)
    }
    assert.notEqual(
      masterKeyFromText(randomBytes(32).toString('hex'), 'a test').id,
      masterKeyFromText(base64, 'a test').id,
    )
  })

  it('is rejected with its source and the fix, and without its text, when it is no key', () => {
    const secret = randomBytes(31).toString('hex')
    const bad = ['', '  \n', 'hunter2', secret, `${secret}zz`, randomBytes(33).toString('base64')]
    for (const text of [...bad, Buffer.alloc(32).toString('base64'), 'f'.repeat(64)]) {
      assert.throws(
        () => masterKeyFromText(text, 'OFFPEAK_MASTER_KEY'),
        (error) =>
          error instanceof MasterKeyError &&
          error.message.startsWith('OFFPEAK_MASTER_KEY is ') &&
          error.message.includes('openssl rand -base64 32') &&
          (text.trim() === '' || !error.message.includes(text)),
        text,
      )
    }
  })

  it('does not show in logs', () => {
    const bytes = randomBytes(32)
    const key = masterKeyFromText(bytes.toString('hex'), 'a test')
    for (const shown of [inspect(key, { depth: 9, showHidden: true }), JSON.stringify(key)]) {
      assert.ok(!shown.includes(bytes.toString('hex')))
      assert.ok(!shown.includes(bytes.toString('base64')))
    }
  })
})

describe('the master key in a file', () => {
  it('is made on first start, closed to others, and found again', async () => {
    await using t = await temporaryFolder()
    const path = join(t.folder, 'data/master-key')
    const made = await readOrCreateMasterKey(path)
    assert.equal((await stat(path)).mode & 0o777, 0o600)
    assert.equal((await readOrCreateMasterKey(path)).id, made.id)
    assert.equal((await readMasterKey(path)).id, made.id)
    assert.equal(masterKeyFromText(await readFile(path, 'utf8'), 'a test').id, made.id)
    assert.deepEqual(await readdir(join(t.folder, 'data')), ['master-key'])
  })

  it('is one and the same for all who start at once', async () => {
    await using t = await temporaryFolder()
    const path = join(t.folder, 'master-key')
    const starts = Array.from({ length: 16 }, async (_, i) => {
      for (let ticks = 0; ticks < i; ticks++) await new Promise(setImmediate)
      return await readOrCreateMasterKey(path)
    })
    const keys = await Promise.all(starts)
    assert.equal(new Set(keys.map(({ id }) => id)).size, 1)
    assert.deepEqual(await readdir(t.folder), ['master-key'])
  })

  it('is rejected when others may read or write it, with the command that fixes it', async () => {
    await using t = await temporaryFolder()
    const path = join(t.folder, 'master-key')
    await readOrCreateMasterKey(path)
    for (const mode of [0o640, 0o604, 0o620, 0o644, 0o666]) {
      await chmod(path, mode)
      await assert.rejects(readOrCreateMasterKey(path), (error) => {
        assert.ok(error instanceof MasterKeyError)
        assert.ok(error.message.includes(`chmod 600 ${path}`))
        return true
      })
    }
    for (const mode of [0o600, 0o400]) {
      await chmod(path, mode)
      await readMasterKey(path)
    }
  })

  it('is never replaced when it is there but no key', async () => {
    await using t = await temporaryFolder()
    const path = join(t.folder, 'master-key')
    for (const text of ['', 'not a key', 'x'.repeat(5000)]) {
      await writeFile(path, text, { mode: 0o600 })
      await assert.rejects(readOrCreateMasterKey(path), MasterKeyError)
      assert.equal(await readFile(path, 'utf8'), text)
    }
  })

  it('that is missing or out of reach is told with its path', async () => {
    await using t = await temporaryFolder()
    const path = join(t.folder, 'master-key')
    await assert.rejects(readMasterKey(path), /there is no master key at .*master-key; restore/)
    await writeFile(path, 'a file')
    await assert.rejects(readOrCreateMasterKey(join(path, 'below')), MasterKeyError)
    await assert.rejects(readOrCreateMasterKey(t.folder), MasterKeyError)
  })
})
