// An attacker who can write to the store cannot deceive a reader: a whole read fails, and a read of a range fails or
// gives the true bytes.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, it } from 'node:test'
import { type TemporaryDisk, temporaryDisk } from '../../test/support/temporary-disk.ts'
import { BlobDamaged } from './blobs.ts'
import { HEAD_BYTES, HEADER_BYTES, parseHead, TAG_BYTES } from './frame-cipher.ts'
import { masterKeyFromText } from './master-key.ts'
import { type SealedBlob, sealBlobs } from './sealed.ts'

const master = masterKeyFromText(randomBytes(32).toString('base64'), 'a test')
/** The size of frames in bytes, small so that every byte of every region can be changed. */
const FRAME_BYTES = 128

/** The content of four frames, the second and last compressible, and one of a single frame. */
const MANY = Buffer.concat([
  randomBytes(128),
  Buffer.alloc(128, 'ab'),
  randomBytes(128),
  Buffer.alloc(90, 'c'),
])
const ONE = randomBytes(75)

class Case {
  readonly #disk: TemporaryDisk
  readonly plain: Buffer
  readonly blob: SealedBlob
  readonly stored: Buffer

  constructor(disk: TemporaryDisk, plain: Buffer, blob: SealedBlob, stored: Buffer) {
    this.#disk = disk
    this.plain = plain
    this.blob = blob
    this.stored = stored
  }

  static async seal(disk: TemporaryDisk, key: string, plain: Buffer, project = 'proj_a'): Promise<Case> {
    const blob = await sealBlobs(disk.blobs, master, { frame_bytes: FRAME_BYTES }).put(project, key, [plain])
    return new Case(disk, plain, blob, await readFile(join(disk.root, 'objects', key)))
  }

  /** The header, the frames and the frame table of the stored blob, each with its head and tag. */
  parts(): Buffer[] {
    const parts = [this.stored.subarray(0, HEADER_BYTES)]
    for (let at = HEADER_BYTES; at < this.stored.length; ) {
      const { payload_bytes } = parseHead(this.stored.subarray(at, at + HEAD_BYTES))
      const end = at + HEAD_BYTES + payload_bytes + TAG_BYTES
      parts.push(this.stored.subarray(at, end))
      at = end
    }
    return parts
  }

  /** Expects that `stored` in place of the blob is detected; `why`: the error of a whole read. */
  async refused(stored: Buffer, why?: RegExp, blob = this.blob, project = 'proj_a'): Promise<void> {
    await writeFile(join(this.#disk.root, 'objects', this.blob.key), stored)
    const sealed = sealBlobs(this.#disk.blobs, master, { frame_bytes: FRAME_BYTES })
    await assert.rejects(sealed.readAll(project, blob), (error) => {
      assert.ok(error instanceof BlobDamaged, String(error))
      assert.equal(error.key, this.blob.key)
      if (why) assert.match(error.message, why)
      return true
    })
    for (const [start, end] of [
      [0, 5],
      [60, 99],
      [90, 200],
      [250, 305],
    ] as const) {
      try {
        const got = await sealed.readAll(project, blob, { start, end })
        assert.ok(got.equals(this.plain.subarray(start, end)), 'a range gave bytes that were never written')
      } catch (error) {
        assert.ok(error instanceof BlobDamaged, String(error))
      }
    }
  }
}

describe('a sealed blob', () => {
  for (const [name, plain] of [
    ['of many frames', MANY],
    ['of one frame', ONE],
    ['that is empty', Buffer.alloc(0)],
  ] as const) {
    it(`${name} with any byte flipped is refused`, async () => {
      await using disk = await temporaryDisk()
      const it = await Case.seal(disk, 'a/b', plain)
      for (let at = 0; at < it.stored.length; at++) {
        const flipped = Buffer.from(it.stored)
        flipped[at]! ^= 1 << (at % 8)
        await it.refused(flipped)
      }
    })

    it(`${name} cut short anywhere is refused`, async () => {
      await using disk = await temporaryDisk()
      const it = await Case.seal(disk, 'a/b', plain)
      for (let bytes = 0; bytes < it.stored.length; bytes++)
        await it.refused(it.stored.subarray(0, bytes), /cut short/)
    })

    it(`${name} with bytes added is refused`, async () => {
      await using disk = await temporaryDisk()
      const it = await Case.seal(disk, 'a/b', plain)
      for (const more of [Buffer.of(0), randomBytes(50), it.stored, it.parts().at(-1)!])
        await it.refused(Buffer.concat([it.stored, more]), /bytes were added/)
    })

    it(`${name} is refused to another project, under another key, or with a wrong size recorded`, async () => {
      await using disk = await temporaryDisk()
      const it = await Case.seal(disk, 'a/b', plain)
      await it.refused(it.stored, /another blob or project/, it.blob, 'proj_b')
      for (const bytes of [0, plain.length - 1, plain.length + 1, plain.length + FRAME_BYTES]) {
        if (bytes !== plain.length && bytes >= 0) await it.refused(it.stored, /./, { ...it.blob, bytes })
      }
    })
  }

  it('with frames dropped, repeated or reordered is refused', async () => {
    await using disk = await temporaryDisk()
    const it = await Case.seal(disk, 'a/b', MANY)
    const parts = it.parts()
    assert.equal(parts.length, 1 + 4 + 1)
    for (let i = 0; i < parts.length; i++) {
      await it.refused(Buffer.concat(parts.toSpliced(i, 1)))
      await it.refused(Buffer.concat(parts.toSpliced(i, 0, parts[i]!)))
      for (let j = i + 1; j < parts.length; j++)
        await it.refused(Buffer.concat(parts.with(i, parts[j]!).with(j, parts[i]!)))
    }
    await it.refused(Buffer.concat(parts.with(2, parts[3]!)), /frame 1 does not authenticate/)
    await it.refused(Buffer.concat(parts.toSpliced(2, 1)), /frame 3 ends the blob too early/)
    await it.refused(Buffer.concat(parts.slice(0, -2)), /cut short before frame 3/)
    await it.refused(Buffer.concat(parts.slice(0, -1)), /cut short before frame 4/)
  })

  it('is refused to a reader of a range when bytes were slipped in or its size is recorded wrongly', async () => {
    await using disk = await temporaryDisk()
    const it = await Case.seal(disk, 'a/b', MANY)
    const sealed = () => sealBlobs(disk.blobs, master, { frame_bytes: FRAME_BYTES })
    const range = { start: 1, end: 2 }
    for (const bytes of [MANY.length - 1, MANY.length + 1])
      await assert.rejects(sealed().readAll('proj_a', { ...it.blob, bytes }, range), /are recorded/)
    const slipped_in = Buffer.concat(it.parts().toSpliced(-1, 0, Buffer.alloc(3)))
    await writeFile(join(disk.root, 'objects/a/b'), slipped_in)
    await assert.rejects(sealed().readAll('proj_a', it.blob, range), /3 bytes were added/)
  })

  it('that claims a frame of a gigabyte is refused before anything is read for it', async () => {
    await using disk = await temporaryDisk()
    const it = await Case.seal(disk, 'a/b', MANY)
    const greedy = Buffer.from(it.stored)
    greedy.writeUInt32BE(2 ** 30 - 1, HEADER_BYTES)
    await it.refused(greedy, /frame 0 claims 1073741823 bytes/)
  })

  it('is not taken for another one of equal length, nor are single frames', async () => {
    await using disk = await temporaryDisk()
    for (const plain of [MANY, ONE, Buffer.alloc(0)]) {
      const one = await Case.seal(disk, 'one', plain)
      const two = await Case.seal(disk, 'two', plain)
      await one.refused(two.stored, /frame 0 does not authenticate/)
      await two.refused(one.stored, /frame 0 does not authenticate/)
      for (const [i, part] of two.parts().entries())
        await one.refused(Buffer.concat(one.parts().with(i, part)))
      await one.refused(two.stored, /another blob or project/, {
        ...one.blob,
        wrapped_key: two.blob.wrapped_key,
      })
    }
  })

  it('is not taken for one that stood under the same key before, nor for one of another project', async () => {
    await using disk = await temporaryDisk()
    const old = await Case.seal(disk, 'a', MANY)
    const foreign = await Case.seal(disk, 'a', MANY, 'proj_b')
    const now = await Case.seal(disk, 'a', MANY)
    await now.refused(old.stored, /frame 0 does not authenticate/)
    await now.refused(foreign.stored, /frame 0 does not authenticate/)
  })

  it('is told from what was never sealed', async () => {
    await using disk = await temporaryDisk()
    const it = await Case.seal(disk, 'a', ONE)
    await it.refused(Buffer.alloc(500, '{"custom_id":"row-1"}\n'), /not that of a sealed blob/)
    await it.refused(Buffer.alloc(0), /cut short within its header/)
  })
})
