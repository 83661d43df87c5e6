import assert from 'node:assert/strict'
import { mkdir, readdir, stat, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { describe, it } from 'node:test'
import { blobsConformance } from '../../../test/conformance/blobs.ts'
import { temporaryDisk } from '../../../test/support/temporary-disk.ts'
import { BlobMissing, BlobStoreFailed } from '../blobs.ts'
import { DiskBlobs } from './disk-blobs.ts'

blobsConformance('a folder', temporaryDisk)

describe('blobs on disk', () => {
  it('a blob is an ordinary file under its key, closed to other users', async () => {
    await using disk = await temporaryDisk()
    await disk.blobs.put('a/b/c', [Buffer.from('x')])
    const found = await stat(join(disk.root, 'objects/a/b/c'))
    assert.equal(found.mode & 0o777, 0o600)
    assert.equal((await stat(join(disk.root, 'objects/a'))).mode & 0o777, 0o700)
  })

  it('a put that failed or was aborted leaves no temporary file', async () => {
    await using disk = await temporaryDisk()
    const failing = function* () {
      yield Buffer.alloc(3 << 20)
      throw new Error('broken')
    }
    await assert.rejects(disk.blobs.put('a', failing()), /broken/)
    for (const [reason, seen] of [
      [undefined, { code: 'ERR_STREAM_PREMATURE_CLOSE' }],
      [new Error('connection reset'), /connection reset/],
    ] as const) {
      let reads = 0
      const upload = new Readable({
        read() {
          if (reads++ === 0) this.push(Buffer.alloc(3 << 20))
          else this.destroy(reason)
        },
      })
      await assert.rejects(disk.blobs.put('b', upload), seen)
    }
    assert.deepEqual(await readdir(join(disk.root, 'tmp')), [])
    assert.deepEqual(await readdir(join(disk.root, 'objects')).catch(() => []), [])
  })

  it('a stream that breaks right after it was handed over fails its put and nothing else', async () => {
    await using disk = await temporaryDisk()
    const upload = new Readable({ read() {} })
    const putting = disk.blobs.put('a', upload)
    setImmediate(() => upload.destroy(new Error('connection reset')))
    await assert.rejects(putting, /connection reset/)
    assert.deepEqual(await readdir(disk.root), [])
  })

  it('a stream is closed when the store fails', async () => {
    await using disk = await temporaryDisk()
    await writeFile(join(disk.root, 'tmp'), 'in the way')
    const upload = new Readable({
      read() {
        this.push(Buffer.alloc(1 << 20))
      },
    })
    await assert.rejects(disk.blobs.put('a', upload), BlobStoreFailed)
    assert.equal(upload.destroyed, true)
  })

  it('a root that cannot be written to is BlobStoreFailed, with the cause', async () => {
    await using disk = await temporaryDisk()
    const file = join(disk.root, 'file')
    await writeFile(file, 'no folder')
    const blobs = new DiskBlobs(file)
    await assert.rejects(blobs.put('a', [Buffer.from('x')]), (error) => {
      assert.ok(error instanceof BlobStoreFailed)
      assert.match(error.message, /writing blob a/)
      assert.ok(error.cause instanceof Error)
      return true
    })
    await assert.rejects(blobs.sweepTemporary(Date.now()), BlobStoreFailed)
    await assert.rejects(blobs.size('a'), BlobMissing)
  })

  it('a blob whose place is taken is BlobStoreFailed and leaves nothing', async () => {
    await using disk = await temporaryDisk()
    await disk.blobs.put('a', [Buffer.from('x')])
    await assert.rejects(disk.blobs.put('a/b', [Buffer.from('y')]), BlobStoreFailed)
    await mkdir(join(disk.root, 'objects/folder'))
    await assert.rejects(disk.blobs.put('folder', [Buffer.from('y')]), BlobStoreFailed)
    assert.deepEqual(await readdir(join(disk.root, 'tmp')), [])
  })

  it('a sweep removes files of crashed writers and no file that is being written', async () => {
    await using disk = await temporaryDisk()
    assert.equal(await disk.blobs.sweepTemporary(Date.now()), 0)
    await disk.blobs.put('kept', [Buffer.from('x')])
    const left = join(disk.root, 'tmp/left-over')
    await writeFile(left, 'half a blob')
    await utimes(left, 1000, 1000)
    const source = async function* () {
      yield Buffer.alloc(2 << 20)
      assert.equal(await disk.blobs.sweepTemporary(2_000_000), 1)
      yield Buffer.from('the rest')
    }
    assert.equal(await disk.blobs.put('slow', source()), (2 << 20) + 8)
    assert.deepEqual(await readdir(join(disk.root, 'tmp')), [])
    assert.deepEqual((await readdir(join(disk.root, 'objects'))).sort(), ['kept', 'slow'])
  })

  it('a writer whose temporary file was swept fails and shows nothing', async () => {
    await using disk = await temporaryDisk()
    const source = async function* () {
      yield Buffer.alloc(2 << 20)
      await disk.blobs.sweepTemporary(Date.now() + 60_000)
    }
    await assert.rejects(disk.blobs.put('a', source()), BlobStoreFailed)
    await assert.rejects(disk.blobs.size('a'), BlobMissing)
  })

  it('folders emptied by deletions go, and a writer that used them makes them again', async () => {
    await using disk = await temporaryDisk()
    const other = new DiskBlobs(disk.root)
    await disk.blobs.put('a/b/1', [Buffer.from('x')])
    await disk.blobs.put('a/c/1', [Buffer.from('x')])
    await other.delete('a/b/1')
    assert.deepEqual(await readdir(join(disk.root, 'objects/a')), ['c'])
    await other.delete('a/c/1')
    assert.deepEqual(await readdir(join(disk.root, 'objects')), [])
    await disk.blobs.put('a/b/2', [Buffer.from('y')])
    assert.equal(await other.size('a/b/2'), 1)
  })
})
