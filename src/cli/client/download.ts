// Downloads a result file. It gets its name only when it is complete; a download whose connection breaks is resumed
// where it ended.
import { appendFile, open, rename, rm, writeFile } from 'node:fs/promises'
import { BATCH_STATUSES, isTerminal } from '../../domain/batch.ts'
import { sleep } from '../../domain/clock.ts'
import type { BatchObject } from '../../wire/batch.ts'
import { checkOutput } from '../output-file.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import { type ApiClient, pathOf } from './client.ts'
import { GROWTH, type Watch } from './watch-batch.ts'

/** Broken connections in a row, without a byte between them, after which reading fails. */
const BREAKS_MAX = 5

/** Writes the content of `fileId` to `path`, or an empty file when it is null. Returns the size in bytes. */
export async function download(
  client: ApiClient,
  fileId: string | null,
  path: string,
  signal?: AbortSignal,
  onBytes: (written: number) => void = () => {},
): Promise<number> {
  await checkOutput(path)
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

interface ResultPaths {
  output: string
  errors: string
}

/** Downloads both result files of a batch; while the batch runs, the lines that are finished so far. */
export async function downloadResults(
  client: ApiClient,
  batch: BatchObject,
  { output, errors }: ResultPaths,
  watch: Watch,
  onBytes?: (written: number) => void,
): Promise<void> {
  if (isTerminal(batch.status)) {
    await download(client, batch.output_file_id, output, watch.signal, onBytes)
    await download(client, batch.error_file_id, errors, watch.signal, onBytes)
    return
  }
  for (const [part, file] of [['output', output] as const, ['error', errors] as const]) {
    await writeFile(file, '')
    const write = (lines: Buffer): Promise<void> => appendFile(file, lines)
    const path = pathOf('batches', batch.id)
    await followResults(client, path, { part, follow: false, write }, watch)
  }
}

// Reads the result lines of a batch that may still be running: the lines that are finished now, or every line once and
// in input order as it finishes. A page whose connection breaks is requested again.

interface Following {
  part: 'output' | 'error' | 'all'
  /** Whether to read until the batch has ended, or only the lines that are finished now. */
  follow: boolean
  write: (lines: Buffer) => Promise<void>
}

export async function followResults(
  client: ApiClient,
  batchPath: string,
  { part, follow, write }: Following,
  { pace, clock, signal }: Watch,
): Promise<void> {
  let after = 0
  for (let waitMs = pace.firstMs; ; ) {
    const query = `after=${after}&part=${part}&limit=10000&contiguous=${follow}`
    const page = await readPage(client, `${batchPath}/results?${query}`, signal)
    if (page.bytes.length > 0) await write(page.bytes)
    after = page.nextAfter
    if (page.hasMore) continue
    if (!follow || page.ended) return
    waitMs = page.bytes.length > 0 ? pace.firstMs : Math.min(pace.longestMs, waitMs * GROWTH)
    await sleep(clock, waitMs, signal)
    if (signal.aborted) throw new Interrupted()
  }
}

interface Page {
  bytes: Buffer
  nextAfter: number
  hasMore: boolean
  ended: boolean
}

async function readPage(client: ApiClient, path: string, signal: AbortSignal | undefined): Promise<Page> {
  for (let breaks = 0; ; breaks++) {
    const { headers, body } = await client.stream(path)
    const nextAfter = Number(headers['x-next-after'])
    if (!Number.isSafeInteger(nextAfter))
      throw new Failure(
        'the answer has no X-Next-After header; update the server to one that returns partial results',
      )
    try {
      const bytes = Buffer.from(await body.arrayBuffer())
      const status = BATCH_STATUSES.find((one) => one === headers['x-batch-status'])
      const ended = status !== undefined && isTerminal(status)
      return { bytes, nextAfter, hasMore: headers['x-has-more'] === 'true', ended }
    } catch (cause) {
      if (signal?.aborted) throw new Interrupted()
      if (breaks >= BREAKS_MAX)
        throw new Failure(
          `the connection broke ${BREAKS_MAX + 1} times in a row while reading results; try again later`,
          undefined,
          { cause },
        )
    }
  }
}
