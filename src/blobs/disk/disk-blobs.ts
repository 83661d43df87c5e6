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
 * Up to here the event loop does it itself, the syncs aside: each way to the thread pool and back costs a busy
 * process more than all of the work, and a small blob takes a dozen of them.
 */
const INLINE_BYTES_MAX = 64 * 1024
/** A folder can be pruned by another process between its making and the rename, but hardly twice. */
const RENAME_TRIES = 3
/** The system's codes for a path that leads to no file. */
const MISSING = ['ENOENT', 'ENOTDIR', 'EISDIR']

/** Blobs under a folder, which is made when the first blob is put. */
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

  /** Not synced: a blob that a power cut brings back is one that nothing refers to, and is swept as such. */
  async delete(key: string): Promise<void> {
    const path = this.#path(key)
    try {
      await unlink(path)
    } catch (cause) {
      const code = errnoOf(cause)
      if (code !== null && MISSING.includes(code)) return
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
   * Removes temporary files of crashed writers, last written before `before` (Unix ms). Choose a time
   * an hour ago or earlier; a slow upload is written to all the time. Resolves to the number of removed files.
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
      // Its writer, or another sweeper, may have been faster.
      const gone = await unlink(path).then(
        () => true,
        () => false,
      )
      if (gone) removed++
    }
    return removed
  }

  /** `folder` is "" or ends in "/"; only keys that begin with `prefix` are looked at. */
  async *#walk(folder: string, prefix: string): AsyncGenerator<StoredBlob, void, undefined> {
    const doing = `listing blobs under ${folder}`
    let entries: AsyncIterable<Dirent>
    try {
      entries = await opendir(join(this.#objects, folder))
    } catch (cause) {
      const code = errnoOf(cause)
      if (code !== null && MISSING.includes(code)) return
      throw new BlobStoreFailed(doing, cause)
    }
    for await (const entry of entries) {
      const key = folder + entry.name
      if (entry.isDirectory()) {
        const below = `${key}/`
        if (below.startsWith(prefix) || prefix.startsWith(below)) yield* this.#walk(below, prefix)
      } else if (key.startsWith(prefix)) {
        // One deleted since the folder was read is no longer there to list.
        const found = await stat(join(this.#objects, key)).catch(() => null)
        if (found !== null) yield { key, bytes: found.size, modified: Math.floor(found.mtimeMs) }
      }
    }
  }

  /**
   * The source is asked first and the file made when there is something to write: a stream is watched from the
   * start, so that one breaking meanwhile fails this put and not the process, and closed when the store fails.
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
      const code = errnoOf(cause)
      throw code !== null && MISSING.includes(code) ? new BlobMissing(key) : new BlobStoreFailed(doing, cause)
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
  // A disk about to be full takes a part; the next call says why.
  const rest = Buffer.concat(pieces).subarray(bytesWritten)
  for (let at = 0; at < rest.length; ) at += (await writeAside(fd, rest, at)).bytesWritten
}

/** A call for each small piece would cost more than writing it. */
const WRITE_BYTES = 1024 * 1024
/** Linux takes at most 1,024 pieces in one call. */
const WRITE_PIECES = 1000

/** Pieces that are worth one write. */
interface Run {
  pieces: Uint8Array[]
  bytes: number
  /** Whether nothing comes before or after it. */
  isAll: boolean
}

/** The pieces of `source`, none empty, in runs. */
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

// A long file is brought to the disk while it is being written: left to its end, that would take as long again,
// with nothing else to do meanwhile.

/** A sync is worth its while after so many bytes; more than twice as many are hardly ever outstanding. */
const SYNC_BYTES = 16 * 1024 * 1024

export class SyncBehind {
  readonly #sync: () => Promise<void>
  #bytes = 0
  #running: Promise<void> | null = null
  /** The system reports a write that failed once: to the sync that met it. */
  #failure: { cause: unknown } | null = null

  constructor(sync: () => Promise<void>) {
    this.#sync = sync
  }

  /** To be told of what has been written; does not wait. */
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

  /** A sync that runs now; it never rejects. */
  get running(): Promise<void> | null {
    return this.#running
  }

  /** Resolves when all that was written is on the disk; rejects as the first sync did that failed. */
  async end(): Promise<void> {
    await this.#running
    if (this.#failure) throw this.#failure.cause
    await this.#sync()
  }
}
