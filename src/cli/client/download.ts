// Reads results: the content of a file, which is resumed where its connection breaks, and the result lines of a batch
// that may still be running, page by page.
import { BATCH_STATUSES, isTerminal } from '../../domain/batch.ts'
import { sleep } from '../../domain/clock.ts'
import type { BatchObject } from '../../wire/batch.ts'
import { writeWhole } from '../output-file.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import { type ApiClient, pathOf } from './client.ts'
import { GROWTH, type Watch } from './watch-batch.ts'

/** The broken connections in a row, without a byte between them, after which reading fails. */
const BREAKS_MAX = 5

/** Streams the content of a file; nothing without an ID. `onBytes` gets the number of received bytes. */
export async function* contentOf(
  client: ApiClient,
  id: string | null,
  onBytes: (come: number) => void = () => {},
): AsyncGenerator<Buffer, void> {
  if (id === null) return
  let come = 0
  for (let breaks = 0; ; breaks++) {
    const before = come
    const range: Record<string, string> = come === 0 ? {} : { range: `bytes=${come}-` }
    const { headers, body } = await client.stream(`${pathOf('files', id)}/content`, range)
    const blocks: AsyncIterable<Buffer> = body
    // A server may ignore the range and send the whole file.
    let at = startOf(headers['content-range'])
    try {
      for await (const block of blocks) {
        const added = block.subarray(Math.max(0, come - at))
        at += block.length
        come += added.length
        onBytes(come)
        yield added
      }
      return
    } catch (error) {
      if (come > before) breaks = 0
      if (breaks < BREAKS_MAX) continue
      const what = `the connection broke ${BREAKS_MAX + 1} times in a row while downloading ${id}; try again later`
      throw new Failure(what, undefined, { cause: error })
    }
  }
}

/** The first byte's offset in a Content-Range (RFC 9110, 14.4); 0 without this header. */
function startOf(header: string | string[] | undefined): number {
  return Number(/^bytes (\d+)-/.exec(String(header))?.[1] ?? 0)
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
  onBytes?: (come: number) => void,
): Promise<void> {
  const files = [
    { part: 'output', id: batch.output_file_id, path: output },
    { part: 'error', id: batch.error_file_id, path: errors },
  ] as const
  for (const { part, id, path } of files)
    await writeWhole(
      path,
      isTerminal(batch.status)
        ? contentOf(client, id, onBytes)
        : resultLines(client, batch.id, { part, follow: false }, watch),
    )
}

interface Following {
  part: 'output' | 'error' | 'all'
  /** Whether to read until the batch has ended, or only the lines that are finished now. */
  follow: boolean
}

/** Streams the result lines that are finished now or, with `follow`, every line once, in the order of the input. */
export async function* resultLines(
  client: ApiClient,
  batch_id: string,
  { part, follow }: Following,
  { pace, clock, signal }: Watch,
): AsyncGenerator<Buffer, void> {
  let after = 0
  for (let waitMs = pace.firstMs; ; ) {
    const query = { after, part, limit: 10_000, contiguous: String(follow) }
    const page = await client.page(`${pathOf('batches', batch_id)}/results`, query)
    if (page.bytes.length > 0) yield page.bytes
    after = Number(page.next)
    if (!Number.isSafeInteger(after))
      throw new Failure(
        'the answer has no X-Next-After header; update the server to one that returns partial results',
      )
    if (page.hasMore) continue
    const status = BATCH_STATUSES.find((one) => one === page.headers['x-batch-status'])
    if (!follow || (status !== undefined && isTerminal(status))) return
    waitMs = page.bytes.length > 0 ? pace.firstMs : Math.min(pace.longestMs, waitMs * GROWTH)
    await sleep(clock, waitMs, signal)
    if (signal.aborted) throw new Interrupted()
  }
}
