// Folders that survive a power failure. A new folder is durable once its entry in its parent is synced, and so on up to
// a folder that existed before. Another process may have made a folder without syncing it yet, so the first use of a
// folder syncs the whole chain; later uses do not.

import { rmdir } from 'node:fs/promises'
import { dirname } from 'node:path'
import { BoundedMap } from '../../domain/bounded-map.ts'
import { makeFolder, syncFolder } from '../folders.ts'

/** The number of folders that are remembered, enough for those of the open batches; evicting one costs a few syncs. */
const REMEMBERED_MAX = 256

export class DurableFolders {
  readonly #root: string
  readonly #sync: FolderSync
  /** The synced folders, oldest use first. */
  readonly #remembered = new BoundedMap<string, true>(REMEMBERED_MAX)

  constructor(root: string, sync: FolderSync) {
    this.#root = root
    this.#sync = sync
  }

  /** Creates `folder` (the root or below it) and its missing parents durably. */
  async ensure(folder: string): Promise<void> {
    if (!this.#remembered.has(folder)) {
      const made = makeFolder(folder)
      // Both lie above `folder`, so the shorter path is the higher one.
      const holdsRoot = dirname(this.#root)
      const holdsMade = made === undefined ? holdsRoot : dirname(made)
      const top = holdsMade.length < holdsRoot.length ? holdsMade : holdsRoot
      const chain: string[] = []
      for (let at = folder; at !== top; at = dirname(at)) chain.push(dirname(at))
      await Promise.all(chain.map((above) => this.#sync.sync(above)))
    }
    this.#remembered.set(folder, true)
  }

  /** Evicts a `folder` that no longer exists. */
  forget(folder: string): void {
    this.#remembered.delete(folder)
  }

  /**
   * Removes `folder` and its parents while they are empty, except folders that this process lately wrote to: they are
   * likely to be written to again.
   */
  async prune(folder: string): Promise<void> {
    for (let at = folder; at !== this.#root; at = dirname(at)) {
      if (this.#remembered.has(at)) return
      const removed = await rmdir(at).then(
        () => true,
        () => false,
      )
      if (!removed) return
    }
  }
}

// Syncs folders. A rename survives a power failure only once its folder is synced. Calls are grouped: those that arrive
// while a sync is running share the next one, because the running one may have begun before their rename.

export class FolderSync {
  readonly #running = new Map<string, Promise<void>>()
  readonly #waiting = new Map<string, Promise<void>>()
  readonly #fsync: (folder: string) => Promise<void>

  constructor(fsync: (folder: string) => Promise<void> = syncFolder) {
    this.#fsync = fsync
  }

  /** Syncs `folder`: resolves after a sync that began after this call, or rejects with its error. */
  sync(folder: string): Promise<void> {
    const waiting = this.#waiting.get(folder)
    if (waiting !== undefined) return waiting
    const running = this.#running.get(folder)
    if (running === undefined) return this.#start(folder)
    const next = running
      // The error of a sync goes to the callers that wait for it.
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
