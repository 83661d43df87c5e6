import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readdir, readFile, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { describe, it } from 'node:test'
import fc from 'fast-check'
import { temporaryDisk } from '../../test/support/temporary-disk.ts'
import { BlobMissing, BlobStoreFailed, type Blobs } from './blobs.ts'
import { DiskBlobs } from './disk/disk-blobs.ts'
import { FRAME_BYTES } from './frame-cipher.ts'
import { masterKeyFromText } from './master-key.ts'
import { sealBlobs } from './sealed.ts'
import { rewrap } from './wrap-key.ts'

const MIB = 1024 * 1024
const newMaster = () => masterKeyFromText(randomBytes(32).toString('base64'), 'a test')
const master = newMaster()

const NOISE = randomBytes(MIB)

/** Runs of text and of noise, without a repetition within 64 KiB. */
function content(bytes: number, seed: number): Buffer {
  const out = Buffer.alloc(bytes, `{"custom_id":"row-${seed}","status_code":200}\n`)
  for (let at = seed % 50_000; at < bytes; at += 90_001) NOISE.copy(out, at, at % 1000, (at % 1000) + 60_000)
  return out
}

function* pieces(bytes: Buffer, size: number): Generator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size)
}

/** The bytes from a stream that reuses one buffer. */
async function* reused(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  const buffer = Buffer.alloc(size)
  for (const piece of pieces(bytes, size)) {
    piece.copy(buffer)
    yield buffer.subarray(0, piece.length)
    buffer.fill(0xee)
  }
}

/** Every file under `root`, with its content. */
async function files(root: string): Promise<Map<string, Buffer>> {
  const found = new Map<string, Buffer>()
  for (const entry of await readdir(root, { recursive: true, withFileTypes: true })) {
    const path = join(entry.parentPath, entry.name)
    if (entry.isFile()) found.set(path, await readFile(path))
  }
  return found
}

describe('sealed blobs', () => {
  it('any content around the edges of frames comes back whole, and any range equals the slice', async () => {
    await using disk = await temporaryDisk()
    const edge = fc
      .tuple(fc.integer({ min: 0, max: 4 }), fc.integer({ min: -2, max: 2 }))
      .map(([frames, off]) => Math.min(MIB, Math.max(0, frames * FRAME_BYTES + off)))
    const size = fc.oneof(edge, fc.integer({ min: 0, max: MIB }))
    await fc.assert(
      fc.asyncProperty(
        size,
        fc.integer({ min: 1, max: 400_000 }),
        fc.array(fc.tuple(size, size), { minLength: 1, maxLength: 4 }),
        fc.nat(),
        async (bytes, piece, ranges, seed) => {
          const plain = content(bytes, seed)
          const sealed = sealBlobs(disk.blobs, master)
          const source = seed % 2 === 0 ? pieces(plain, piece) : reused(plain, piece)
          const blob = await sealed.put('proj_a', 'x', source)
          assert.equal(blob.bytes, bytes)
          assert.ok((await sealed.readAll('proj_a', blob)).equals(plain))
          for (const [start, end] of ranges) {
            const got = await sealed.readAll('proj_a', blob, { start, end })
            assert.ok(got.equals(plain.subarray(start, Math.max(start, end))), `${start}..${end} of ${bytes}`)
          }
        },
      ),
      { numRuns: 25 },
    )
  })

  it('so with frames of any size, also those of a writer configured otherwise', async () => {
    await using disk = await temporaryDisk()
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 200 }),
        fc.integer({ min: 1, max: 200 }),
        fc.integer({ min: 0, max: 900 }),
        fc.integer({ min: 0, max: 1000 }),
        fc.integer({ min: 0, max: 1000 }),
        async (written_by, read_by, bytes, start, end) => {
          const plain = content(bytes, bytes)
          const blob = await sealBlobs(disk.blobs, master, { frame_bytes: written_by }).put('p', 'x', [plain])
          const reader = sealBlobs(disk.blobs, master, { frame_bytes: read_by })
          assert.ok((await reader.readAll('p', blob)).equals(plain))
          const got = await reader.readAll('p', blob, { start, end })
          assert.ok(got.equals(plain.subarray(start, Math.max(start, end))))
        },
      ),
      { numRuns: 100 },
    )
  })

  it('a range is read without touching other frames', async () => {
    await using disk = await temporaryDisk()
    let read_bytes = 0
    const counting: Blobs = {
      put: (key, source) => disk.blobs.put(key, source),
      size: (key) => disk.blobs.size(key),
      delete: (key) => disk.blobs.delete(key),
      list: (prefix) => disk.blobs.list(prefix),
      async *read(key, range) {
        for await (const piece of disk.blobs.read(key, range)) {
          read_bytes += piece.length
          yield piece
        }
      },
    }
    const sealed = sealBlobs(counting, master)
    const plain = randomBytes(16 * MIB)
    const blob = await sealed.put('p', 'x', [plain])
    const range = { start: 9 * MIB + 5, end: 9 * MIB + 105 }
    assert.ok((await sealed.readAll('p', blob, range)).equals(plain.subarray(range.start, range.end)))
    assert.ok(read_bytes < FRAME_BYTES + 1000, `${read_bytes} bytes were read`)
    read_bytes = 0
    await sealed.readAll('p', blob, range)
    assert.equal(read_bytes, FRAME_BYTES + 20, 'the second range knows header and table')
  })

  it('ranges of many blobs can be read in turn', async () => {
    await using disk = await temporaryDisk()
    const sealed = sealBlobs(disk.blobs, master, { frame_bytes: 100 })
    const plains = Array.from({ length: 12 }, (_, i) => randomBytes(1000 + i))
    const blobs = await Promise.all(plains.map((plain, i) => sealed.put('p', `${i}`, [plain])))
    for (const start of [0, 450, 990]) {
      for (const [i, blob] of blobs.entries()) {
        const got = await sealed.readAll('p', blob, { start, end: start + 120 })
        assert.ok(got.equals(plains[i]!.subarray(start, start + 120)))
      }
    }
  })

  it('what compresses is stored smaller, what does not barely larger', async () => {
    await using disk = await temporaryDisk()
    const sealed = sealBlobs(disk.blobs, master)
    await sealed.put('p', 'text', [Buffer.from('{"role":"user","content":"hello"}\n'.repeat(30_000))])
    assert.ok((await disk.blobs.size('text')) < 30_000)
    const { bytes } = await sealed.put('p', 'noise', [randomBytes(2 * MIB)])
    assert.ok((await disk.blobs.size('noise')) < bytes + 500)
  })

  it('no plaintext reaches the disk, not even while it is written', async () => {
    await using disk = await temporaryDisk()
    // One canary in noise, which zstd leaves unchanged; one in text, which zstd would leave in part.
    const noise = randomBytes(48)
    const text = Buffer.from(`canary-${randomBytes(12).toString('hex')}`)
    const holds = (file: Buffer) => file.includes(noise) || file.includes(text)
    const sealed = sealBlobs(disk.blobs, master)
    let written = 0
    const source = async function* () {
      for (let i = 0; i < 12; i++) {
        yield Buffer.concat([randomBytes(MIB / 4), noise, randomBytes(MIB / 4)])
        yield text
      }
      for (const [path, file] of await files(join(disk.root, 'tmp'))) {
        written += file.length
        assert.ok(!holds(file), path)
      }
    }
    await sealed.put('p', 'big', source())
    assert.ok(written > MIB, 'the temporary file was looked at while it grew')
    await sealed.put('p', 'small', [text])
    await sealed.put('p', 'small-noise', [noise])
    for (const [path, file] of await files(disk.root)) assert.ok(!holds(file), path)
    await disk.blobs.put('in-the-clear', [Buffer.concat([randomBytes(99), noise])])
    assert.equal([...(await files(disk.root)).values()].filter(holds).length, 1, 'the search finds canaries')
  })

  it('equal content is sealed differently each time', async () => {
    await using disk = await temporaryDisk()
    const sealed = sealBlobs(disk.blobs, master)
    const one = await sealed.put('p', 'one', [Buffer.from('the same words')])
    const two = await sealed.put('p', 'two', [Buffer.from('the same words')])
    assert.notEqual(one.wrapped_key, two.wrapped_key)
    const [a, b] = await Promise.all(['one', 'two'].map((key) => readFile(join(disk.root, 'objects', key))))
    assert.ok(!a!.subarray(24).equals(b!.subarray(24)))
  })

  it('a source that fails or is aborted midway leaves nothing', async () => {
    await using disk = await temporaryDisk()
    const sealed = sealBlobs(disk.blobs, master)
    const failure = new Error('the connection broke')
    const failing = async function* () {
      for (let i = 0; i < 10; i++) yield randomBytes(MIB / 2)
      throw failure
    }
    await assert.rejects(sealed.put('p', 'a', failing()), failure)
    let reads = 0
    const upload = new Readable({
      read() {
        if (reads++ < 3) this.push(randomBytes(MIB))
        else this.destroy()
      },
    })
    await assert.rejects(sealed.put('p', 'b', upload), { code: 'ERR_STREAM_PREMATURE_CLOSE' })
    const never = Readable.from([])
    never.on('error', () => {})
    never.destroy(new Error('aborted'))
    await assert.rejects(sealed.put('p', 'c', never), /aborted/)
    assert.equal((await files(disk.root)).size, 0)
  })

  it('a source is asked for no more than a few frames beyond what the store has taken', async () => {
    let given = 0
    let ahead_max = 0
    const slow: Blobs = {
      ...unusable,
      async put(_key, source) {
        let stored = 0
        for await (const piece of source) {
          stored += piece.length
          await new Promise(setImmediate)
          ahead_max = Math.max(ahead_max, given - stored)
        }
        return stored
      },
    }
    const noise = randomBytes(FRAME_BYTES)
    const source = function* () {
      for (let i = 0; i < 60; i++) {
        given += noise.length
        yield noise
      }
    }
    const blob = await sealBlobs(slow, master).put('p', 'x', source())
    assert.equal(blob.bytes, 60 * FRAME_BYTES)
    assert.ok(ahead_max < 7 * FRAME_BYTES, `${ahead_max} bytes were held`)
  })

  it('a reader may leave early, or come with a range past the end', async () => {
    await using disk = await temporaryDisk()
    const sealed = sealBlobs(disk.blobs, master)
    const plain = content(3 * MIB, 1)
    const blob = await sealed.put('p', 'x', [plain])
    for await (const part of sealed.read('p', blob)) {
      assert.ok(part.equals(plain.subarray(0, part.length)))
      break
    }
    for await (const _ of sealed.read('p', blob, { start: MIB, end: 3 * MIB })) break
    assert.equal((await sealed.readAll('p', blob, { start: 3 * MIB, end: 4 * MIB })).length, 0)
    await assert.rejects(sealed.readAll('p', blob, { start: -1, end: 4 }), RangeError)
  })

  it('after a rotation of the master key the rewritten wrapped key opens the untouched blob', async () => {
    await using disk = await temporaryDisk()
    const plain = content(MIB, 2)
    const blob = await sealBlobs(disk.blobs, master).put('p', 'x', [plain])
    const before = await stat(join(disk.root, 'objects/x'))
    const next = newMaster()
    const moved = { ...blob, wrapped_key: rewrap(blob.wrapped_key, 'p', 'x', master, next) }
    const sealed = sealBlobs(disk.blobs, next)
    assert.ok((await sealed.readAll('p', moved)).equals(plain))
    await assert.rejects(sealed.readAll('p', blob), /sealed with another master key/)
    assert.equal((await stat(join(disk.root, 'objects/x'))).mtimeMs, before.mtimeMs)
  })

  it('a missing blob is BlobMissing, a deleted one too, and a broken store BlobStoreFailed', async () => {
    await using disk = await temporaryDisk()
    const sealed = sealBlobs(disk.blobs, master)
    const small = await sealed.put('p', 'small', [Buffer.from('x')])
    const big = await sealed.put('p', 'big', [content(MIB, 3)])
    for (const blob of [small, big]) {
      await sealed.delete(blob.key)
      await assert.rejects(sealed.readAll('p', blob), BlobMissing)
    }
    await assert.rejects(sealed.readAll('p', big, { start: 300_000, end: 300_001 }), BlobMissing)
    await disk.blobs.put('file', [Buffer.from('x')])
    const broken = sealBlobs(new DiskBlobs(join(disk.root, 'objects/file')), master)
    await assert.rejects(broken.put('p', 'x', [Buffer.from('y')]), BlobStoreFailed)
  })
})

const unusable: Blobs = {
  put: () => assert.fail(),
  read: () => assert.fail(),
  size: () => assert.fail(),
  delete: () => assert.fail(),
  list: () => assert.fail(),
}
