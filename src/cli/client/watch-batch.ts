// Waits for a file or a batch and shows its progress: polls often at first, then less and less often.
import { isTerminal } from '../../domain/batch.ts'
import { type Clock, sleep } from '../../domain/clock.ts'
import { visible } from '../../domain/text.ts'
import { BatchObject } from '../../wire/batch.ts'
import { FileObject } from '../../wire/file.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import { type BatchProgress, batchLine, type ProgressView, waitLine } from '../terminal/progress-view.ts'
import { humanDuration } from '../terminal/terminal.ts'
import type { ApiClient } from './client.ts'

/** Waits until the file is `processed`. Throws FileInvalid when its validation fails. */
export async function watchFile(client: ApiClient, id: string, watch: Watch): Promise<FileObject> {
  const read = async (): Promise<FileObject> => {
    const file = await client.get(FileObject, `/v1/files/${id}`)
    watch.view.show('checking', (columns, paint) => waitLine('validating', columns, paint))
    return file
  }
  const file = await poll(read, ({ status }) => status === 'processed' || status === 'error', watch)
  if (file.status === 'error') throw new FileInvalid(file)
  return file
}

/** Waits until the batch has a terminal status. */
export async function watchBatch(client: ApiClient, id: string, watch: Watch): Promise<BatchObject> {
  const { view, clock } = watch
  let point: RatePoint | undefined
  let tokens: RatePoint | undefined
  let moved = { done: -1, atMs: clock.now() }
  const read = async (): Promise<BatchObject> => {
    const batch = await client.get(BatchObject, `/v1/batches/${id}`)
    const { total, completed, failed } = batch.request_counts
    const done = completed + failed
    point = nextRate(point, done, clock.now())
    tokens = nextRate(tokens, batch.usage?.output_tokens ?? 0, clock.now())
    if (done !== moved.done || batch.status !== 'in_progress') moved = { done, atMs: clock.now() }
    const stillMs = clock.now() - moved.atMs
    // Without finished lines, the rates fall and the estimated time grows without meaning.
    const rates =
      stillMs < STILL_MS
        ? { rate: perSecond(point), tokenRate: perSecond(tokens), leftMs: leftMs(point, total) }
        : {}
    const progress = { ...progressOf(batch, stillMs), ...rates }
    view.show(batch.status, (columns, paint) => batchLine(progress, columns, paint))
    return batch
  }
  return await poll(read, ({ status }) => isTerminal(status), watch)
}

/** The time in ms without a finished line after which no rate is shown. */
const STILL_MS = 10_000
/** The time in ms without a finished line after which the batch is shown as stalled. */
const STALLED_MS = 30_000

/** The progress of a batch to show. `stillMs`: the time without a finished line. */
export function progressOf(batch: BatchObject, stillMs = 0): BatchProgress {
  const { status, request_counts: counts, not_run: notRun, cost_usd } = batch
  const { total, completed, failed } = counts
  return {
    status,
    total,
    done: completed + failed - notRun,
    failed: failed - notRun,
    notRun,
    cost_usd,
    rate: null,
    tokenRate: null,
    leftMs: null,
    reason: reasonOf(batch, stillMs),
  }
}

function reasonOf({ waiting_reason, progress }: BatchObject, stillMs: number): string | undefined {
  const late = progress?.at_risk ? 'may miss its completion window' : undefined
  const why = [late, waiting_reason?.message].filter((one) => one !== undefined).join(': ') || undefined
  if (stillMs < STALLED_MS) return why
  const time = humanDuration(stillMs)
  return why === undefined ? `no line has finished for ${time}` : `stalled for ${time}: ${why}`
}

/** The error for an invalid input file: no line was run, and nothing is billed. */
export class FileInvalid extends Failure {
  constructor(file: FileObject) {
    // The first bad line is in status_details already.
    const others = (file.errors ?? [])
      .slice(1)
      .map(({ line, message }) => visible(`  line ${line}: ${message}`))
    super(
      [
        visible(`${file.filename} was refused: ${file.status_details ?? 'its validation failed'}`),
        ...others,
        'No line was run, and nothing is billed. Fix the file and run the command again.',
      ].join('\n'),
    )
    this.name = 'FileInvalid'
  }
}

// The rate of a batch as an exponentially weighted average: the weight of a sample is halved every HALF_LIFE_MS. Lines
// and time are weighted alike, so the first samples are not biased towards zero.

const HALF_LIFE_MS = 5000

interface RatePoint {
  atMs: number
  done: number
  /** The weighted sums of finished lines and of time in ms. */
  lines: number
  timeMs: number
}

/** The rate after a sample of `done` lines at `atMs`. Of samples at the same instant, only the first counts. */
export function nextRate(last: RatePoint | undefined, done: number, atMs: number): RatePoint {
  if (last === undefined) return { atMs, done, lines: 0, timeMs: 0 }
  const passedMs = atMs - last.atMs
  if (passedMs <= 0) return last
  const fade = 0.5 ** (passedMs / HALF_LIFE_MS)
  return {
    atMs,
    done,
    lines: last.lines * fade + Math.max(0, done - last.done),
    timeMs: last.timeMs * fade + passedMs,
  }
}

/** Finished lines per second at the rate; null before its second sample. */
export function perSecond(point: RatePoint): number | null {
  return point.timeMs > 0 ? (point.lines / point.timeMs) * 1000 : null
}

/** Milliseconds until `total` lines are done at this rate; null when the rate is zero or unknown. */
export function leftMs(point: RatePoint, total: number): number | null {
  const rate = perSecond(point)
  if (rate === null || rate <= 0) return null
  return (Math.max(0, total - point.done) / rate) * 1000
}

// Polls until a condition holds: often at first, so that a small batch is not delayed, then less and less often, so
// that a long one does not use up the rate limit.

export interface Pace {
  firstMs: number
  longestMs: number
}

/** The polling intervals for a service on the same machine. */
export const LOCAL_PACE: Pace = { firstMs: 50, longestMs: 1000 }
export const REMOTE_PACE: Pace = { firstMs: 250, longestMs: 5000 }

export interface Watch {
  view: ProgressView
  pace: Pace
  clock: Clock
  signal: AbortSignal
}

export const GROWTH = 1.3

/** Polls `read` until `done` accepts a value, and returns it. Throws Interrupted when `signal` aborts. */
export async function poll<T>(
  read: () => Promise<T>,
  done: (value: T) => boolean,
  { pace, clock, signal }: Omit<Watch, 'view'>,
): Promise<T> {
  for (let waitMs = pace.firstMs; ; waitMs = Math.min(pace.longestMs, waitMs * GROWTH)) {
    if (signal.aborted) throw new Interrupted()
    const value = await read()
    if (done(value)) return value
    await sleep(clock, waitMs, signal)
  }
}
