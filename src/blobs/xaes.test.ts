import assert from 'node:assert/strict'
import { createSecretKey } from 'node:crypto'
import { describe, it } from 'node:test'
import { xaesOpen, xaesSeal } from './wrap-key.ts'

// The test vectors of the specification, one for either branch of the doubling.
const VECTORS = [
  { byte: 0x01, aad: '', sealed: 'ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271' },
  {
    byte: 0x03,
    aad: 'c2sp.org/XAES-256-GCM',
    sealed: '986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d',
  },
]

describe('XAES-256-GCM', () => {
  for (const { byte, aad, sealed } of VECTORS) {
    it(`seals as the specification shows for a key of ${byte}s`, () => {
      const key = createSecretKey(Buffer.alloc(32, byte))
      const nonce = Buffer.from('ABCDEFGHIJKLMNOPQRSTUVWX')
      const plain = Buffer.from('XAES-256-GCM')
      assert.equal(xaesSeal(key, nonce, plain, Buffer.from(aad)).toString('hex'), sealed)
      assert.deepEqual(xaesOpen(key, nonce, Buffer.from(sealed, 'hex'), Buffer.from(aad)), plain)
      assert.throws(() => xaesOpen(key, nonce, Buffer.from(sealed, 'hex'), Buffer.from(`${aad}!`)))
    })
  }
})
