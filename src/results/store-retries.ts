// Retries writes to the stores until they succeed: finished lines are paid for, and a full disk may get space again.
// While they fail, the worker claims no work.

import { sleep } from '../domain/clock.ts'
import type { Ports } from '../store/store.ts'
import type { Fresh } from './chunk-results.ts'

/** What the recorder does with blobs (`journal`, `seal`) and in the database (`commit`, `park`). */
export type RecordWork = 'journal' | 'seal' | 'commit' | 'park'

/** The recorder tells metrics of its work. */
export interface RecordObserver {
  /** These lines have ended, and that is durable. */
  committed(lines: Fresh): void
  recorded(work: RecordWork, durationMs: number): void
}

const RETRY_MS_MIN = 200
const RETRY_MS_MAX = 5_000

/** For log messages. */
const WORK: Readonly<Record<RecordWork, string>> = {
  journal: 'writing a journal',
  seal: 'sealing a chunk',
  commit: 'committing results',
  park: 'parking a chunk',
}

/** An error that `isFinal` accepts is thrown; after any other error, `attempt` is repeated. */
export type RetryUntilStored = <T>(
  work: RecordWork,
  attempt: () => Promise<T>,
  isFinal?: (error: unknown) => boolean,
) => Promise<T>

interface StoreRetriesOptions extends Pick<Ports, 'clock' | 'log'> {
  observe?: RecordObserver | undefined
}

export class StoreRetries {
  readonly #options: StoreRetriesOptions
  /** Set while the stores fail (Unix ms). */
  failingSince: number | null = null

  constructor(options: StoreRetriesOptions) {
    this.#options = options
  }

  readonly retryUntilStored: RetryUntilStored = async (work, attempt, isFinal = () => false) => {
    const { clock, log, observe } = this.#options
    for (let waitMs = RETRY_MS_MIN; ; waitMs = Math.min(waitMs * 2, RETRY_MS_MAX)) {
      try {
        const begun = clock.now()
        const value = await attempt()
        observe?.recorded(work, clock.now() - begun)
        this.failingSince = null
        return value
      } catch (error) {
        if (isFinal(error)) throw error
        this.failingSince ??= clock.now()
        log.error({ err: error }, `${WORK[work]} failed; trying again in ${waitMs} ms`)
        await sleep(clock, waitMs)
      }
    }
  }
}
