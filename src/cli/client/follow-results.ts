// Reads the result lines of a batch that may still be running: the lines that are finished now, or every line once and
// in input order as it finishes. A page whose connection breaks is requested again.
import { BATCH_STATUSES, isTerminal } from '../../domain/batch.ts'
import { type Clock, sleep } from '../../domain/clock.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import type { ApiClient } from './client.ts'
import type { Pace } from './poll.ts'

const GROWTH = 1.3
/** Broken connections in a row after which reading fails. */
const BREAKS_MAX = 5

export interface Following {
  part: 'output' | 'error' | 'all'
  /** Whether to read until the batch has ended, or only the lines that are finished now. */
  follow: boolean
  write: (lines: Buffer) => Promise<void>
  pace: Pace
  clock: Clock
  signal?: AbortSignal | undefined
}

export async function followResults(client: ApiClient, batchPath: string, to: Following): Promise<void> {
  const { part, follow, write, pace, clock, signal } = to
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
    if (signal?.aborted) throw new Interrupted()
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
