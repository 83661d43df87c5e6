// Writes files: each is written under a temporary name, and gets its own name once it is complete. The name is checked
// first of all before lines are sent, which are paid for whether their answers can be written or not.
import { access, constants, type FileHandle, open, realpath, rename, rm, stat } from 'node:fs/promises'
import { basename, dirname, join, resolve } from 'node:path'
import { compressionOf, formatOf, type Sink } from '../tables/table.ts'
import { Failure, writing } from './terminal/failure.ts'

/**
 * Throws where no file can be written at `path`, such as at that of a folder or a device, which a renamed file would
 * replace; or where it would replace one of the files `kept` (by description), also by another name. `jsonl`: lines are
 * written, and the name must not have another format.
 */
export async function checkOutput(
  path: string,
  kept: Record<string, string> = {},
  format?: 'jsonl',
): Promise<void> {
  const found = await stat(path).catch(() => null)
  if (found ? !found.isFile() : basename(path) === '' || path.endsWith('/'))
    throw new Failure(`the output ${path} is not a regular file; name a file`)
  await access(dirname(resolve(path)), constants.W_OK)
  const place = await pathWithoutLinks(path)
  for (const [what, other] of Object.entries(kept))
    if (place === (await pathWithoutLinks(other)))
      throw new Failure(`the output ${path} would replace ${what}; name another file with -o`)
  if (format && (compressionOf(path) !== null || (formatOf(path) ?? format) !== format))
    throw new Failure(
      `the output ${path} has lines of JSON, which its name does not say; end it with .jsonl. ` +
        'A table of the answers of a batch: offpeak results BATCH -o answers.parquet (or .csv)',
    )
}

/** The path of an output file without links, whether the file exists or not. */
async function pathWithoutLinks(path: string): Promise<string> {
  return await realpath(path).catch(async () => join(await realpath(dirname(path)), basename(path)))
}

const BLOCK_CHARACTERS = 256 * 1024

/** A file that is written in blocks under a temporary name and gets its own name when it is complete. */
export class PartialFile implements Sink {
  readonly #path: string
  readonly #handle: FileHandle
  #text = ''

  private constructor(path: string, handle: FileHandle) {
    this.#path = path
    this.#handle = handle
  }

  static async create(path: string): Promise<PartialFile> {
    await checkOutput(path)
    // The file of a program that was killed, or of one that still runs, which sees that in `end`.
    await rm(partialPath(path), { force: true })
    return new PartialFile(path, await open(partialPath(path), 'wx'))
  }

  /** Appends a piece; undefined while the text only waits for the rest of its block. */
  append(piece: string | Uint8Array): Promise<void> | undefined {
    if (typeof piece !== 'string') return this.#appendBytes(piece)
    this.#text += piece
    return this.#text.length >= BLOCK_CHARACTERS ? this.#flush() : undefined
  }

  async end(): Promise<void> {
    await this.#flush()
    if (!(await this.#isOurs()))
      throw new Failure(`another program writes ${this.#path}; wait for its end, or name another file`)
    await this.#handle.close()
    await rename(partialPath(this.#path), this.#path)
  }

  async abort(): Promise<void> {
    const isOurs = await this.#isOurs().catch(() => false)
    await this.#handle.close().catch(() => {})
    if (isOurs) await rm(partialPath(this.#path), { force: true })
  }

  /** Whether the temporary name is still that of this file. */
  async #isOurs(): Promise<boolean> {
    const [own, named] = await Promise.all([
      this.#handle.stat(),
      stat(partialPath(this.#path)).catch(() => null),
    ])
    return own.ino === named?.ino
  }

  async #appendBytes(bytes: Uint8Array): Promise<void> {
    await this.#flush()
    await this.#write(bytes)
  }

  async #flush(): Promise<void> {
    const text = this.#text
    this.#text = ''
    await this.#write(text)
  }

  async #write(piece: string | Uint8Array): Promise<void> {
    await writing(this.#path, this.#handle.appendFile(piece))
  }
}

/** Writes a file, which gets its name once all of `blocks` are in it. */
export async function writeWhole(
  path: string,
  blocks: AsyncIterable<string | Uint8Array> | Iterable<string>,
): Promise<void> {
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
