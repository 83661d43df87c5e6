// Folders that survive a power cut: a new folder is only as durable as its entry in the folder above it, up to
// one that was there before. Another process may have made a folder and not yet synced it, so the first use of a
// folder syncs the chain even where nothing had to be made; after that it is remembered.
import { mkdirSync } from 'node:fs'
import { rmdir } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { FolderSync } from './folder-sync.ts'

/** Folders in use at a time are those of the open batches; forgetting one costs a few syncs, not safety. */
const REMEMBERED_MAX = 256

export class DurableFolders {
  readonly #root: string
  readonly #sync: FolderSync
  /** Oldest use first. */
  readonly #remembered = new Set<string>()

  constructor(root: string, sync: FolderSync) {
    this.#root = root
    this.#sync = sync
  }

  /** Makes `folder` (the root or below it) and what is missing above it, durably. */
  async ensure(folder: string): Promise<void> {
    if (!this.#remembered.delete(folder)) {
      const made = mkdirSync(folder, { recursive: true, mode: 0o700 })
      // Both lie above `folder`, so the shorter path is the higher one.
      const holdsRoot = dirname(this.#root)
      const holdsMade = made === undefined ? holdsRoot : dirname(made)
      const top = holdsMade.length < holdsRoot.length ? holdsMade : holdsRoot
      const chain: string[] = []
      for (let at = folder; at !== top; at = dirname(at)) chain.push(dirname(at))
      await Promise.all(chain.map((above) => this.#sync.sync(above)))
    }
    this.#remembered.add(folder)
    for (const oldest of this.#remembered) {
      if (this.#remembered.size <= REMEMBERED_MAX) break
      this.#remembered.delete(oldest)
    }
  }

  /** To be called when `folder` turned out to be gone. */
  forget(folder: string): void {
    this.#remembered.delete(folder)
  }

  /**
   * Removes `folder` and the folders above it that are empty, except those this process lately wrote to: they are
   * likely to be written to again, and making a folder costs more than keeping one.
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
