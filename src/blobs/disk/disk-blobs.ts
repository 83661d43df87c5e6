// Blobs in a folder: ROOT/objects/ has them under their keys, ROOT/tmp/ has files that are being written. A blob is
// written under a temporary name and synced, then renamed, and its folder is synced, so a blob exists completely and
// durably or not at all. Any number of processes may share the folder. A key cannot be a prefix folder of another key.
import { randomUUID } from 'node:crypto'
import {
  closeSync,
  type Dirent,
  fdatasync,
  fstatSync,
  openSync,
  read,
  readSync,
  renameSync,
  write,
  writeSync,
  writev,
} from 'node:fs'
import { opendir, readdir, stat, unlink } from 'node:fs/promises'
import { dirname, join, resolve } from 'node:path'
import { promisify } from 'node:util'
import {
  assertBlobKey,
  assertBlobPrefix,
  attempt,
  BlobMissing,
  BlobStoreFailed,
  type Blobs,
  type ByteRange,
  cutRange,
  type Source,
  type StoredBlob,
} from '../blobs.ts'
import { errnoOf, makeFolder } from '../folders.ts'
import { DurableFolders, FolderSync } from './durable-folders.ts'

const readAside = promisify(read)
const writeAside = promisify(write)
const writevAside = promisify(writev)
const datasyncAside = promisify(fdatasync)

const READ_BYTES = 512 * 1024
/**
 * The largest blob in bytes that the event loop writes itself, syncs excepted: each switch to the thread pool costs a
 * busy process more than all of the work, and a small blob takes a dozen of them.
 */
const INLINE_BYTES_MAX = 64 * 1024
/** The attempts at a rename: another process may prune the folder between its creation and the rename. */
const RENAME_TRIES = 3
/** Error codes of the system for a path that leads to no file. */
const MISSING = ['ENOENT', 'ENOTDIR', 'EISDIR']
const isMissing = (cause: unknown): boolean => MISSING.includes(errnoOf(cause) ?? '')

/** Blobs under a folder, which is created when the first blob is put. */
export class DiskBlobs implements Blobs {
  readonly #objects: string
  readonly #temporary: string
  readonly #sync = new FolderSync()
  readonly #folders: DurableFolders

  constructor(folder: string) {
    const root = resolve(folder)
    this.#objects = join(root, 'objects')
    this.#temporary = join(root, 'tmp')
    this.#folders = new DurableFolders(this.#objects, this.#sync)
  }

  async put(key: string, source: Source): Promise<number> {
    const path = this.#path(key)
    const doing = `writing blob ${key}`
    const temporary = join(this.#temporary, randomUUID())
    let written = temporary
    try {
      const bytes = await this.#write(temporary, source, doing)
      await attempt(doing, this.#rename(temporary, path))
      written = path
      await attempt(doing, this.#sync.sync(dirname(path)))
      return bytes
    } catch (cause) {
      await unlink(written).catch(() => {})
      throw cause
    }
  }

  async *read(key: string, range?: ByteRange): AsyncGenerator<Buffer, void, undefined> {
    const doing = `reading blob ${key}`
    const path = this.#path(key)
    const fd = await this.#found(key, doing, () => openSync(path, 'r'))
    try {
      const { size } = await this.#found(key, doing, () => fstatSync(fd))
      const { start, end } = cutRange(range, size)
      for (let at = start; at < end; ) {
        const wanted = Math.min(READ_BYTES, end - at)
        const piece = Buffer.allocUnsafe(wanted)
        const isInline = end - start <= INLINE_BYTES_MAX
        const bytesRead = await this.#found(key, doing, async () =>
          isInline
            ? readSync(fd, piece, 0, wanted, at)
            : (await readAside(fd, piece, 0, wanted, at)).bytesRead,
        )
        if (bytesRead === 0) return
        at += bytesRead
        yield piece.subarray(0, bytesRead)
      }
    } finally {
      closeSync(fd)
    }
  }

  async size(key: string): Promise<number> {
    const path = this.#path(key)
    const found = await this.#found(key, `looking for blob ${key}`, () => stat(path))
    if (!found.isFile()) throw new BlobMissing(key)
    return found.size
  }

  /** Deletes without a sync: a blob that reappears after a power failure is an orphan, and the sweep deletes it. */
  async delete(key: string): Promise<void> {
    const path = this.#path(key)
    try {
      await unlink(path)
    } catch (cause) {
      if (isMissing(cause)) return
      throw new BlobStoreFailed(`deleting blob ${key}`, cause)
    }
    await this.#folders.prune(dirname(path))
  }

  async *list(prefix: string): AsyncGenerator<StoredBlob, void, undefined> {
    assertBlobPrefix(prefix)
    const folder = prefix.slice(0, prefix.lastIndexOf('/') + 1)
    yield* this.#walk(folder, prefix)
  }

  /**
   * Removes temporary files of crashed writers, last written before `before` (Unix ms). Choose a time at least an hour
   * ago; a slow upload is written to all the time. Resolves to the number of removed files.
   */
  async sweepTemporary(before: number): Promise<number> {
    const doing = 'sweeping temporary files'
    const names = await attempt(
      doing,
      readdir(this.#temporary).catch((cause): string[] => {
        if (errnoOf(cause) === 'ENOENT') return []
        throw cause
      }),
    )
    let removed = 0
    for (const name of names) {
      const path = join(this.#temporary, name)
      const left = await stat(path).catch(() => null)
      if (left === null || left.mtimeMs >= before) continue
      // The writer of the file, or another sweeper, may have been faster.
      const gone = await unlink(path).then(
        () => true,
        () => false,
      )
      if (gone) removed++
    }
    return removed
  }

  /** Lists the blobs in `folder` ("" or ending in "/") whose keys begin with `prefix`. */
  async *#walk(folder: string, prefix: string): AsyncGenerator<StoredBlob, void, undefined> {
    const doing = `listing blobs under ${folder}`
    let entries: AsyncIterable<Dirent>
    try {
      entries = await opendir(join(this.#objects, folder))
    } catch (cause) {
      if (isMissing(cause)) return
      throw new BlobStoreFailed(doing, cause)
    }
    for await (const entry of entries) {
      const key = folder + entry.name
      if (entry.isDirectory()) {
        const below = `${key}/`
        if (below.startsWith(prefix) || prefix.startsWith(below)) yield* this.#walk(below, prefix)
      } else if (key.startsWith(prefix)) {
        // A blob that was deleted meanwhile is not listed.
        const found = await stat(join(this.#objects, key)).catch(() => null)
        if (found !== null) yield { key, bytes: found.size, modified: Math.floor(found.mtimeMs) }
      }
    }
  }

  /**
   * Writes a source to a file, created with the first piece. The source is read first, so that its error fails this put
   * and not the process; a store's failure closes the source.
   */
  async #write(temporary: string, source: Source, doing: string): Promise<number> {
    let fd: number | null = null
    let bytes = 0
    const synced = new SyncBehind(async () => {
      if (fd !== null) await datasyncAside(fd)
    })
    try {
      for await (const run of gather(source)) {
        fd ??= await attempt(doing, this.#create(temporary))
        const isInline = run.isAll && run.bytes <= INLINE_BYTES_MAX
        await attempt(doing, isInline ? appendInline(fd, run) : append(fd, run))
        bytes += run.bytes
        synced.wrote(run.bytes)
      }
      fd ??= await attempt(doing, this.#create(temporary))
      await attempt(doing, synced.end())
      return bytes
    } finally {
      await synced.running
      if (fd !== null) closeSync(fd)
    }
  }

  async #create(temporary: string): Promise<number> {
    try {
      return openSync(temporary, 'wx', 0o600)
    } catch (cause) {
      if (errnoOf(cause) !== 'ENOENT') throw cause
      makeFolder(this.#temporary)
      return openSync(temporary, 'wx', 0o600)
    }
  }

  async #rename(temporary: string, path: string): Promise<void> {
    const folder = dirname(path)
    for (let tries = 1; ; tries++) {
      await this.#folders.ensure(folder)
      try {
        renameSync(temporary, path)
        return
      } catch (cause) {
        if (errnoOf(cause) !== 'ENOENT' || tries === RENAME_TRIES) throw cause
        this.#folders.forget(folder)
      }
    }
  }

  async #found<T>(key: string, doing: string, call: () => T | Promise<T>): Promise<T> {
    try {
      return await call()
    } catch (cause) {
      throw isMissing(cause) ? new BlobMissing(key) : new BlobStoreFailed(doing, cause)
    }
  }

  #path(key: string): string {
    assertBlobKey(key)
    return join(this.#objects, key)
  }
}

async function appendInline(fd: number, { pieces }: Run): Promise<void> {
  const all = Buffer.concat(pieces)
  for (let at = 0; at < all.length; ) at += writeSync(fd, all, at)
}

async function append(fd: number, { pieces, bytes }: Run): Promise<void> {
  const { bytesWritten } = await writevAside(fd, pieces)
  if (bytesWritten === bytes) return
  // A disk that is nearly full writes a part; the next call throws the error.
  const rest = Buffer.concat(pieces).subarray(bytesWritten)
  for (let at = 0; at < rest.length; ) at += (await writeAside(fd, rest, at)).bytesWritten
}

/** The bytes that are gathered into one write: a call for each small piece would cost more than the writing. */
const WRITE_BYTES = 1024 * 1024
/** The most pieces of one write: Linux accepts 1,024. */
const WRITE_PIECES = 1000

/** The pieces of a blob that are written to its file at once. */
interface Run {
  pieces: Uint8Array[]
  bytes: number
  /** Whether the run has all pieces of the blob's source. */
  isAll: boolean
}

/** Gathers the pieces of `source` into runs without empty pieces. */
async function* gather(source: Source): AsyncGenerator<Run, void, undefined> {
  let isFirst = true
  let gathered: Uint8Array[] = []
  let bytes = 0
  for await (const piece of source) {
    if (piece.length === 0) continue
    gathered.push(piece)
    bytes += piece.length
    if (bytes < WRITE_BYTES && gathered.length < WRITE_PIECES) continue
    yield { pieces: gathered, bytes, isAll: false }
    isFirst = false
    gathered = []
    bytes = 0
  }
  if (bytes > 0) yield { pieces: gathered, bytes, isAll: isFirst }
}

// Syncs a long file while it is being written: a single sync at its end would take as long again.

/** The bytes between two syncs; rarely more than twice as many are not synced. */
const SYNC_BYTES = 16 * 1024 * 1024

export class SyncBehind {
  readonly #sync: () => Promise<void>
  #bytes = 0
  #running: Promise<void> | null = null
  /** The first failure of a sync: the system reports a failed write to one sync only. */
  #failure: { cause: unknown } | null = null

  constructor(sync: () => Promise<void>) {
    this.#sync = sync
  }

  /** Counts written bytes and starts a sync if enough were written; does not wait. */
  wrote(bytes: number): void {
    this.#bytes += bytes
    if (this.#bytes < SYNC_BYTES || this.#running !== null) return
    this.#bytes = 0
    this.#running = this.#sync()
      .catch((cause: unknown) => {
        this.#failure ??= { cause }
      })
      .finally(() => {
        this.#running = null
      })
  }

  /** The sync of the file that runs now; never rejects. */
  get running(): Promise<void> | null {
    return this.#running
  }

  /** Resolves when all written bytes are on the disk; rejects with the error of the first failed sync. */
  async end(): Promise<void> {
    await this.#running
    if (this.#failure) throw this.#failure.cause
    await this.#sync()
  }
}
