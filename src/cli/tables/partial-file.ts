// A file that is written in blocks under a temporary name and gets its own name when it is complete.
import { type FileHandle, open, rename, rm } from 'node:fs/promises'

const BLOCK_CHARACTERS = 256 * 1024

export class PartialFile {
  readonly #path: string
  readonly #handle: FileHandle
  #text = ''

  private constructor(path: string, handle: FileHandle) {
    this.#path = path
    this.#handle = handle
  }

  static async create(path: string): Promise<PartialFile> {
    return new PartialFile(path, await open(partialPath(path), 'w'))
  }

  /** Undefined while the text only waits for the rest of its block. */
  append(text: string): Promise<void> | undefined {
    this.#text += text
    return this.#text.length >= BLOCK_CHARACTERS ? this.#flush() : undefined
  }

  async end(): Promise<void> {
    await this.#flush()
    await this.#handle.close()
    await rename(partialPath(this.#path), this.#path)
  }

  async abort(): Promise<void> {
    await this.#handle.close().catch(() => {})
    await rm(partialPath(this.#path), { force: true })
  }

  async #flush(): Promise<void> {
    const text = this.#text
    this.#text = ''
    await this.#handle.appendFile(text)
  }
}

export function partialPath(path: string): string {
  return `${path}.part`
}
