import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { describe, it } from 'node:test'
import { BlobDamaged } from './blobs.ts'
import { masterKeyFromText } from './master-key.ts'
import { rewrap, unwrapKey, wrapKey } from './wrap-key.ts'

const newMaster = () => masterKeyFromText(randomBytes(32).toString('base64'), 'a test')

describe('wrapped keys', () => {
  it('open to the data key for the same project and blob', () => {
    const master = newMaster()
    const data_key = randomBytes(32)
    const wrapped = wrapKey(data_key, 'proj_1', 'a/b', master)
    assert.match(wrapped, /^[A-Za-z0-9_-]{108}$/)
    assert.deepEqual(unwrapKey(wrapped, 'proj_1', 'a/b', master), data_key)
  })

  it('never come out the same twice', () => {
    const master = newMaster()
    const data_key = randomBytes(32)
    assert.notEqual(wrapKey(data_key, 'p', 'k', master), wrapKey(data_key, 'p', 'k', master))
  })

  it('stay shut for another project, another blob, or the same letters split elsewhere', () => {
    const master = newMaster()
    const wrapped = wrapKey(randomBytes(32), 'proj_1', 'a/b', master)
    for (const [project, key] of [
      ['proj_2', 'a/b'],
      ['proj_1', 'a/c'],
      ['proj_1a', '/b'],
    ] as const) {
      assert.throws(() => unwrapKey(wrapped, project, key, master), /belongs to another blob or project/)
    }
  })

  it('tell another master key from damage', () => {
    const master = newMaster()
    const other = newMaster()
    const wrapped = wrapKey(randomBytes(32), 'p', 'k', master)
    assert.throws(
      () => unwrapKey(wrapped, 'p', 'k', other),
      (error) =>
        error instanceof BlobDamaged &&
        error.message.includes('sealed with another master key') &&
        error.message.includes(master.id) &&
        error.message.includes(other.id),
    )
  })

  it('with any bit flipped are refused', () => {
    const master = newMaster()
    const bytes = Buffer.from(wrapKey(randomBytes(32), 'p', 'k', master), 'base64url')
    for (let bit = 0; bit < bytes.length * 8; bit++) {
      const flipped = Buffer.from(bytes)
      flipped[bit >> 3]! ^= 1 << (bit & 7)
      assert.throws(() => unwrapKey(flipped.toString('base64url'), 'p', 'k', master), BlobDamaged)
    }
    for (const text of ['', 'nonsense', bytes.subarray(1).toString('base64url')])
      assert.throws(() => unwrapKey(text, 'p', 'k', master), /none of ours/)
  })

  it('are moved to a new master key without the blob, and the old one opens them no more', () => {
    const from = newMaster()
    const to = newMaster()
    const data_key = randomBytes(32)
    const moved = rewrap(wrapKey(data_key, 'p', 'k', from), 'p', 'k', from, to)
    assert.deepEqual(unwrapKey(moved, 'p', 'k', to), data_key)
    assert.throws(() => unwrapKey(moved, 'p', 'k', from), /another master key/)
    assert.throws(() => rewrap(moved, 'p', 'k', from, to), /another master key/)
  })
})
