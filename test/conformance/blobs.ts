// What every store of blobs must do, run against each adapter by its own test file.
import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { BlobMissing, type Blobs, type StoredBlob } from '../../src/blobs/blobs.ts'

const MIB = 1024 * 1024

/** `makeBlobs` gives an empty store, disposed of after each test. */
export function blobsConformance(
  name: string,
  makeBlobs: () => Promise<AsyncDisposable & { blobs: Blobs }>,
): void {
  const test = (sentence: string, body: (blobs: Blobs) => Promise<void>): void => {
    it(sentence, async () => {
      await using made = await makeBlobs()
      await body(made.blobs)
    })
  }

  describe(`${name} as a store of blobs`, () => {
    test('what was put is read back, and its size is told', async (blobs) => {
      assert.equal(await blobs.put('a/b.txt', [Buffer.from('hello '), Buffer.from('world')]), 11)
      assert.equal((await readAll(blobs, 'a/b.txt')).toString(), 'hello world')
      assert.equal(await blobs.size('a/b.txt'), 11)
    })

    test('an empty blob is a blob', async (blobs) => {
      assert.equal(await blobs.put('empty', []), 0)
      assert.equal((await readAll(blobs, 'empty')).length, 0)
      assert.equal(await blobs.size('empty'), 0)
    })

    test('a stream of many uneven pieces is stored in order', async (blobs) => {
      const content = pattern(3 * MIB + 17)
      assert.equal(await blobs.put('big', pieces(content, 1531)), content.length)
      assert.ok((await readAll(blobs, 'big')).equals(content))
    })

    test('a range is read without the rest, and cut at the end', async (blobs) => {
      const content = pattern(2 * MIB)
      await blobs.put('big', [content])
      const ranges = [
        [0, 1],
        [0, content.length],
        [1000, 1000],
        [MIB - 1, MIB + 1],
        [123_456, 1_900_001],
        [content.length - 1, content.length],
        [content.length - 5, content.length + 100],
        [content.length, content.length + 1],
        [5 * MIB, 6 * MIB],
      ] as const
      for (const [start, end] of ranges) {
        const got = await readAll(blobs, 'big', { start, end })
        assert.ok(got.equals(content.subarray(start, end)), `${start}..${end}`)
      }
    })

    test('what is no range is refused', async (blobs) => {
      await blobs.put('a', [Buffer.from('abc')])
      for (const range of [
        { start: -1, end: 2 },
        { start: 0.5, end: 2 },
        { start: 0, end: Number.NaN },
      ])
        await assert.rejects(readAll(blobs, 'a', range), RangeError)
    })

    test('a blob that is not there is BlobMissing to read and to measure', async (blobs) => {
      await blobs.put('a/b', [Buffer.from('x')])
      for (const key of ['a/c', 'b', 'a', 'a/b/c']) {
        await assert.rejects(readAll(blobs, key), BlobMissing, key)
        await assert.rejects(readAll(blobs, key, { start: 0, end: 1 }), BlobMissing, key)
        await assert.rejects(blobs.size(key), BlobMissing, key)
      }
    })

    test('a deleted blob is gone, and deleting it again is no error', async (blobs) => {
      await blobs.put('a/b', [Buffer.from('x')])
      await blobs.put('a/c', [Buffer.from('y')])
      await blobs.delete('a/b')
      await blobs.delete('a/b')
      await blobs.delete('never/there')
      await assert.rejects(readAll(blobs, 'a/b'), BlobMissing)
      assert.equal((await readAll(blobs, 'a/c')).toString(), 'y')
      await blobs.delete('a/c')
      assert.deepEqual(await listed(blobs, ''), [])
      await blobs.put('a/c', [Buffer.from('z')])
      assert.equal((await readAll(blobs, 'a/c')).toString(), 'z')
    })

    test('a source that fails midway leaves nothing visible, and its own error comes out', async (blobs) => {
      const failure = new Error('the connection broke')
      const source = async function* () {
        yield pattern(2 * MIB)
        throw failure
      }
      await assert.rejects(blobs.put('a/b', source()), failure)
      await assert.rejects(blobs.size('a/b'), BlobMissing)
      await assert.rejects(readAll(blobs, 'a/b'), BlobMissing)
      assert.deepEqual(await listed(blobs, ''), [])
    })

    test('a second put replaces the blob as a whole, or when it fails not at all', async (blobs) => {
      await blobs.put('a', [Buffer.from('the first')])
      const source = function* () {
        yield Buffer.from('half of the sec')
        throw new Error('broken')
      }
      await assert.rejects(blobs.put('a', source()), /broken/)
      assert.equal((await readAll(blobs, 'a')).toString(), 'the first')
      await blobs.put('a', [Buffer.from('second')])
      assert.equal((await readAll(blobs, 'a')).toString(), 'second')
    })

    test('a listing has every blob under the prefix, with its size and age, and no other', async (blobs) => {
      const before = Date.now()
      for (const key of ['b/1/in', 'b/1/out', 'b/10/in', 'b/2', 'c']) await blobs.put(key, [Buffer.from(key)])
      assert.deepEqual(await listed(blobs, ''), ['b/1/in', 'b/1/out', 'b/10/in', 'b/2', 'c'])
      assert.deepEqual(await listed(blobs, 'b/'), ['b/1/in', 'b/1/out', 'b/10/in', 'b/2'])
      assert.deepEqual(await listed(blobs, 'b/1'), ['b/1/in', 'b/1/out', 'b/10/in'])
      assert.deepEqual(await listed(blobs, 'b/1/'), ['b/1/in', 'b/1/out'])
      assert.deepEqual(await listed(blobs, 'b/1/o'), ['b/1/out'])
      assert.deepEqual(await listed(blobs, 'c'), ['c'])
      assert.deepEqual(await listed(blobs, 'd'), [])
      assert.deepEqual(await listed(blobs, 'b/3/'), [])
      for await (const blob of blobs.list('')) {
        assert.equal(blob.bytes, blob.key.length)
        // A store may keep whole seconds, and a clock of its own.
        assert.ok(Math.abs(blob.modified - before) < 60_000)
      }
    })

    test('what is still being written is neither listed nor readable', async (blobs) => {
      let seen: string[] | null = null
      const source = async function* () {
        yield pattern(2 * MIB)
        seen = await listed(blobs, '')
        await assert.rejects(blobs.size('a/b'), BlobMissing)
        yield pattern(MIB)
      }
      await blobs.put('a/b', source())
      assert.deepEqual(seen, [])
      assert.deepEqual(await listed(blobs, ''), ['a/b'])
    })

    test('many blobs can be put into one place at once', async (blobs) => {
      const keys = Array.from({ length: 40 }, (_, i) => `together/${i % 3}/${i}`)
      await Promise.all(keys.map((key) => blobs.put(key, [Buffer.from(key)])))
      assert.deepEqual(await listed(blobs, 'together/'), keys.toSorted())
      for (const key of keys) assert.equal((await readAll(blobs, key)).toString(), key)
    })

    test('a reader may leave early', async (blobs) => {
      await blobs.put('big', [pattern(3 * MIB)])
      for await (const piece of blobs.read('big')) {
        assert.ok(piece.length > 0)
        break
      }
      await blobs.delete('big')
    })

    test('what is no key is refused, so nothing outside the store can be reached', async (blobs) => {
      const bad = [
        '',
        '/',
        '/a',
        'a/',
        'a//b',
        '.',
        '..',
        '../a',
        'a/../../b',
        'a/./b',
        'a b',
        'ü',
        'a\\b',
        'a\0b',
      ]
      for (const key of [...bad, 'a'.repeat(256), `${'a/'.repeat(256)}a`]) {
        await assert.rejects(blobs.put(key, [Buffer.from('x')]), RangeError, key)
        await assert.rejects(readAll(blobs, key), RangeError, key)
        await assert.rejects(blobs.size(key), RangeError, key)
        await assert.rejects(blobs.delete(key), RangeError, key)
      }
      for (const prefix of ['../', '/', 'a/../', 'a//', 'ü'])
        await assert.rejects(listed(blobs, prefix), RangeError, prefix)
      await blobs.put('..a/.b/c-d_E.9', [Buffer.from('x')])
      assert.deepEqual(await listed(blobs, '..a/.'), ['..a/.b/c-d_E.9'])
    })
  })
}

async function readAll(blobs: Blobs, key: string, range?: { start: number; end: number }): Promise<Buffer> {
  const parts: Buffer[] = []
  for await (const part of blobs.read(key, range)) parts.push(part)
  return Buffer.concat(parts)
}

async function listed(blobs: Blobs, prefix: string): Promise<string[]> {
  const found: StoredBlob[] = []
  for await (const blob of blobs.list(prefix)) found.push(blob)
  return found.map(({ key }) => key).sort()
}

/** Bytes in which every offset is recognisable. */
function pattern(bytes: number): Buffer {
  const out = Buffer.alloc(bytes)
  for (let i = 0; i + 4 <= bytes; i += 4) out.writeUInt32LE(i, i)
  return out
}

async function* pieces(content: Buffer, bytes: number): AsyncGenerator<Buffer> {
  for (let at = 0, size = 0; at < content.length; at += size) {
    size = 1 + ((size + bytes) % (3 * bytes))
    yield content.subarray(at, at + size)
  }
}
