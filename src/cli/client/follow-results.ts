// Result lines of a batch that may still run: what is finished by now, or every line as it is finished, each
// once and in the order of the input. A page that breaks off is asked for again.
import { BATCH_STATUSES, isTerminal } from '../../domain/batch.ts'
import { type Clock, sleep } from '../../domain/clock.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import type { ApiClient } from './client.ts'
import type { Pace } from './poll.ts'

const GROWTH = 1.3
/** Breaks in a row after which reading is given up. */
const BREAKS_MAX = 5

export interface Following {
  part: 'output' | 'error' | 'all'
  /** On until the batch has ended; else until all that is finished by now has been read. */
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
      throw new Failure('the server does not know how to tell what is finished so far; is it up to date?')
    try {
      const bytes = Buffer.from(await body.arrayBuffer())
      const status = BATCH_STATUSES.find((one) => one === headers['x-batch-status'])
      const ended = status !== undefined && isTerminal(status)
      return { bytes, nextAfter, hasMore: headers['x-has-more'] === 'true', ended }
    } catch (cause) {
      if (signal?.aborted) throw new Interrupted()
      if (breaks >= BREAKS_MAX)
        throw new Failure('reading results broke off again and again; try again later', undefined, { cause })
    }
  }
}
