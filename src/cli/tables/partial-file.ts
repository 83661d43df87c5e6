// A file that is written in blocks under a temporary name and gets its own name when it is complete.
import { type FileHandle, open, realpath, rename, rm } from 'node:fs/promises'
import type { Sink } from '../../tables/table.ts'
import { Failure } from '../terminal/failure.ts'

const BLOCK_CHARACTERS = 256 * 1024

export class PartialFile implements Sink {
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
  append(piece: string | Uint8Array): Promise<void> | undefined {
    if (typeof piece !== 'string') return this.#appendBytes(piece)
    this.#text += piece
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

  async #appendBytes(bytes: Uint8Array): Promise<void> {
    await this.#flush()
    await this.#handle.appendFile(bytes)
  }

  async #flush(): Promise<void> {
    const text = this.#text
    this.#text = ''
    await this.#handle.appendFile(text)
  }
}

/** The file gets its name once all of `blocks` are in it. */
export async function writeWhole(path: string, blocks: AsyncIterable<string | Uint8Array>): Promise<void> {
  const file = await PartialFile.create(path)
  try {
    for await (const block of blocks) await file.append(block)
    await file.end()
  } catch (error) {
    await file.abort()
    throw error
  }
}

function partialPath(path: string): string {
  return `${path}.part`
}

/** Throws when what is written would replace what is read, also by another name. */
export async function refuseSameFile(input: string, output: string): Promise<void> {
  const [from, to] = await Promise.all([realpath(input), realpath(output).catch(() => null)])
  if (from === to)
    throw new Failure(`the output ${output} would replace the input; name another file with -o`)
}
