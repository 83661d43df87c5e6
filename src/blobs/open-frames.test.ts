import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import fc from 'fast-check'
import { ByteReader } from './open-frames.ts'

async function* stream(pieces: Buffer[]): AsyncGenerator<Buffer> {
  yield* pieces
}

describe('reading bytes', () => {
  it('gives runs of the wanted size whatever the pieces, and what is left at the end', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.uint8Array({ maxLength: 20 })),
        fc.array(fc.integer({ min: 0, max: 50 })),
        async (arrays, sizes) => {
          const pieces = arrays.map((array) => Buffer.from(array))
          const all = Buffer.concat(pieces)
          const reader = new ByteReader(stream(pieces))
          let at = 0
          for (const size of [...sizes, all.length, 1]) {
            assert.deepEqual(await reader.take(size), all.subarray(at, at + size))
            at += size
          }
        },
      ),
    )
  })

  it('passes on the failure of the stream, and closes it when told to', async () => {
    let closed = false
    const failing = async function* () {
      try {
        yield Buffer.from('abc')
        throw new Error('gone')
      } finally {
        closed = true
      }
    }
    const reader = new ByteReader(failing())
    assert.equal((await reader.take(2)).toString(), 'ab')
    await assert.rejects(reader.take(2), /gone/)
    const left = new ByteReader(failing())
    closed = false
    await left.close()
    assert.equal(closed, true)
  })
})
