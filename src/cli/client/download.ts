// Downloads a result file. It gets its name only when it is complete; a download whose connection breaks is resumed
// where it ended.
import { open, rename, rm, writeFile } from 'node:fs/promises'
import { Failure, Interrupted } from '../terminal/failure.ts'
import type { ApiClient } from './client.ts'

/** Broken connections in a row, without a byte between them, after which a download fails. */
const BREAKS_MAX = 5

/** Writes the content of `fileId` to `path`, or an empty file when it is null. Returns the size in bytes. */
export async function download(
  client: ApiClient,
  fileId: string | null,
  path: string,
  signal?: AbortSignal,
  onBytes: (written: number) => void = () => {},
): Promise<number> {
  const partial = `${path}.part`
  try {
    let bytes = 0
    if (fileId === null) await writeFile(partial, '')
    else bytes = await fetchTo(client, fileId, partial, signal, onBytes)
    await rename(partial, path)
    return bytes
  } catch (error) {
    await rm(partial, { force: true })
    throw error
  }
}

async function fetchTo(
  client: ApiClient,
  fileId: string,
  partial: string,
  signal: AbortSignal | undefined,
  onBytes: (written: number) => void,
): Promise<number> {
  let written = 0
  for (let breaks = 0; ; breaks++) {
    const before = written
    // Opened before the call: received bytes are read before a broken connection can discard them.
    const handle = await open(partial, written === 0 ? 'w' : 'a')
    try {
      const response = await client.stream(
        `/v1/files/${fileId}/content`,
        written === 0 ? {} : { range: `bytes=${written}-` },
      )
      const blocks: AsyncIterable<Buffer> = response.body
      const resumed = response.statusCode === 206 && startOf(response.headers['content-range']) === written
      if (written > 0 && !resumed) {
        await handle.truncate(0)
        written = 0
      }
      // The next attempt resumes behind the bytes that are written to the file.
      for await (const block of arriving(blocks, signal)) {
        await handle.appendFile(block)
        written += block.length
        onBytes(written)
      }
      return written
    } catch (error) {
      if (!(error instanceof Broken)) throw error
      if (written > before) breaks = 0
      if (breaks >= BREAKS_MAX) {
        const what = `the connection broke ${BREAKS_MAX + 1} times in a row while downloading ${fileId}; try again later`
        throw new Failure(what, undefined, { cause: error })
      }
    } finally {
      await handle.close()
    }
  }
}

/** An error of the connection, not of the disk. */
class Broken extends Error {}

async function* arriving(
  blocks: AsyncIterable<Buffer>,
  signal: AbortSignal | undefined,
): AsyncGenerator<Buffer> {
  try {
    yield* blocks
  } catch (cause) {
    if (signal?.aborted) throw new Interrupted()
    throw new Broken('the connection broke', { cause })
  }
}

/** The first byte that a Content-Range (RFC 9110, 14.4) names. */
function startOf(header: string | string[] | undefined): number | null {
  const match = typeof header === 'string' ? /^bytes (\d+)-/.exec(header) : null
  return match?.[1] === undefined ? null : Number(match[1])
}
