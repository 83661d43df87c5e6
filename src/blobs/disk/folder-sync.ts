// Syncs folders. A rename survives a power failure only once its folder is synced. Calls are grouped: those that arrive
// while a sync is running share the next one, because the running one may have begun before their rename.
import { closeSync, constants, fsync, openSync } from 'node:fs'
import { promisify } from 'node:util'
import { errnoOf } from './fs-error.ts'

const syncAside = promisify(fsync)

/** File systems without such a call (some network and FUSE ones) answer with these. */
const NOT_SUPPORTED = ['EINVAL', 'ENOTSUP']

export class FolderSync {
  readonly #running = new Map<string, Promise<void>>()
  readonly #waiting = new Map<string, Promise<void>>()
  readonly #fsync: (folder: string) => Promise<void>

  constructor(fsync: (folder: string) => Promise<void> = fsyncFolder) {
    this.#fsync = fsync
  }

  /** Resolves when a sync of `folder` that began after this call has ended; rejects as it does. */
  sync(folder: string): Promise<void> {
    const waiting = this.#waiting.get(folder)
    if (waiting !== undefined) return waiting
    const running = this.#running.get(folder)
    if (running === undefined) return this.#start(folder)
    const next = running
      // Its failure is for those who asked for it.
      .catch(() => {})
      .then(() => {
        this.#waiting.delete(folder)
        return this.#start(folder)
      })
    this.#waiting.set(folder, next)
    return next
  }

  #start(folder: string): Promise<void> {
    const run = this.#fsync(folder).finally(() => {
      if (this.#running.get(folder) === run) this.#running.delete(folder)
    })
    this.#running.set(folder, run)
    return run
  }
}

async function fsyncFolder(folder: string): Promise<void> {
  // Windows syncs no folders; NTFS keeps renames in its own journal.
  if (process.platform === 'win32') return
  const fd = openSync(folder, constants.O_RDONLY)
  try {
    await syncAside(fd)
  } catch (cause) {
    if (!NOT_SUPPORTED.includes(errnoOf(cause) ?? '')) throw cause
  } finally {
    closeSync(fd)
  }
}
