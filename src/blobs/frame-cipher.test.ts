import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { describe, it } from 'node:test'
import { BlobDamaged } from './blobs.ts'
import { FrameCipher, frameCount, newHeader, parseHead, parseHeader } from './frame-cipher.ts'

describe('a sealed frame', () => {
  const dataKey = randomBytes(32)
  const header = newHeader(1000)
  const cipher = new FrameCipher(header, dataKey, 'proj_a', 'a/b')
  const [raw, ciphertext, tag] = cipher.seal(7, Buffer.from('payload'), { last: false, zstd: true })
  const head = parseHead(raw)
  const sealed = Buffer.concat([ciphertext, tag])

  it('opens in its own place', () => {
    assert.deepEqual(head, { last: false, zstd: true, payload_bytes: 7 })
    assert.equal(cipher.open(7, head, sealed).toString(), 'payload')
  })

  it('opens nowhere else, though the data key be the same', () => {
    const changed = Buffer.from(header.raw)
    changed.writeUInt32BE(1001, 16)
    const others = [
      new FrameCipher(header, dataKey, 'proj_b', 'a/b'),
      new FrameCipher(header, dataKey, 'proj_a', 'a/c'),
      new FrameCipher(newHeader(1000), dataKey, 'proj_a', 'a/b'),
      new FrameCipher({ raw: changed, frame_bytes: 1001 }, dataKey, 'proj_a', 'a/b'),
      new FrameCipher(header, randomBytes(32), 'proj_a', 'a/b'),
    ]
    for (const other of others) assert.throws(() => other.open(7, head, sealed), BlobDamaged)
    assert.throws(() => cipher.open(8, head, sealed), /frame 8 does not authenticate/)
    assert.throws(() => cipher.open(7, { ...head, last: true }, sealed), BlobDamaged)
    assert.throws(() => cipher.open(7, { ...head, zstd: false }, sealed), BlobDamaged)
  })
})

describe('the header of a sealed blob', () => {
  it('says how it was cut', () => {
    assert.equal(parseHeader('k', newHeader(4096).raw).frame_bytes, 4096)
    assert.deepEqual(
      [0, 1, 4096, 4097].map((bytes) => frameCount(bytes, 4096)),
      [1, 1, 1, 2],
    )
  })

  it('of another version, with unknown flags or frames too large for memory is refused', () => {
    for (const [at, value] of [
      [0, 0x4f + 1],
      [7, 2],
      [8, 1],
      [16, 1],
    ] as const) {
      const { raw } = newHeader(4096)
      raw[at] = value
      assert.throws(() => parseHeader('k', raw), BlobDamaged)
    }
    assert.throws(() => parseHeader('k', newHeader(0).raw), /frames of 0 bytes/)
  })
})
