// Fetches a file of results. It appears under its name only when it is complete; a connection that breaks on
// the way is taken up where it broke.
import { open, rename, rm, writeFile } from 'node:fs/promises'
import { Failure, Interrupted } from '../terminal/failure.ts'
import type { ApiClient } from './client.ts'

/** Breaks in a row, without a byte between them, after which a download is given up. */
const BREAKS_MAX = 5

/** Writes the content of `fileId` to `path`, or an empty file when there is none. Returns its bytes. */
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
    // Opened first: what has arrived is read before a broken connection can take it back.
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
      // Only what is on disk counts: the next attempt goes on behind it.
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
        const what = `the download of ${fileId} broke off again and again; try again later`
        throw new Failure(what, undefined, { cause: error })
      }
    } finally {
      await handle.close()
    }
  }
}

/** The connection's fault, not the disk's. */
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
