// Retries work on the stores until it succeeds: finished lines are paid for, and a full disk may get space again. While
// it fails, the worker claims nothing new.

import { type Clock, sleep } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import type { RecordObserver, RecordWork } from './record-observer.ts'

const RETRY_MS_MIN = 200
const RETRY_MS_MAX = 5_000

/** As the log puts it. */
const WORK: Readonly<Record<RecordWork, string>> = {
  journal: 'writing a journal',
  seal: 'sealing a chunk',
  commit: 'committing results',
  park: 'parking a chunk',
}

/** `isFinal` says of an error that no other attempt is to be made: then it is thrown. */
export type RetryUntilStored = <T>(
  work: RecordWork,
  attempt: () => Promise<T>,
  isFinal?: (error: unknown) => boolean,
) => Promise<T>

export interface StoreRetriesOptions {
  clock: Clock
  log: Log
  observe?: RecordObserver | undefined
}

export class StoreRetries {
  readonly #options: StoreRetriesOptions
  /** Set while the stores refuse (Unix ms). */
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
