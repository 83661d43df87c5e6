// Shows progress: on a terminal as one line that is redrawn in place, elsewhere (a log, a pipe) as a plain line at
// every change of phase and every few seconds in between.
import { SingleBar } from 'cli-progress'
import type { Clock } from '../../domain/clock.ts'
import { visible } from '../../domain/text.ts'
import {
  counted,
  humanBytes,
  humanCount,
  humanDuration,
  humanRate,
  humanUsd,
  type Output,
  type Paint,
  paintFor,
  plain,
  shown,
  writeLine,
} from './terminal.ts'

/**
 * The progress of a batch in one line of limited width. When it is too wide, the bar shrinks first, then the reason why
 * the batch waits is cut, then the least important parts are left out.
 */
export interface BatchProgress {
  status: string
  total: number
  done: number
  failed: number
  /** Lines that ended without being sent; they are neither done nor failed. */
  notRun: number
  cost_usd: number
  /** Finished lines per second; null when unknown. */
  rate: number | null
  /** Tokens of answers per second; null when unknown. */
  tokenRate: number | null
  /** Milliseconds until the end at this rate; null when unknown. */
  leftMs: number | null
  /** The reason why the batch waits or may be late; shown where there is room. */
  reason?: string | undefined
}

const BAR_MIN = 10
const BAR_MAX = 30
const GAP = '  '

/** Whole percents, rounded down, so that 100 means that every line is done. */
export function percent(done: number, total: number): number {
  return total === 0 ? 0 : Math.floor((done / total) * 100)
}

export function batchLine(progress: BatchProgress, columns: number, paint: Paint): string {
  const { status, total, done, failed, notRun, cost_usd, rate, tokenRate, leftMs } = progress
  const moving = status === 'in_progress' || status === 'cancelling'
  // The most important part first.
  const parts = [
    `${String(percent(done, total)).padStart(3)}%`,
    `${humanCount(done)}/${counted(total, 'line')}`,
    ...(failed > 0 ? [`${humanCount(failed)} failed`] : []),
    ...(notRun > 0 ? [`${humanCount(notRun)} not run`] : []),
    ...(moving && rate !== null && rate > 0 ? [humanRate(rate)] : []),
    ...(moving && tokenRate !== null && tokenRate > 0
      ? [`${humanCount(Math.round(tokenRate))} tokens/s`]
      : []),
    ...(moving && leftMs !== null ? [`${humanDuration(Math.ceil(leftMs / 1000) * 1000)} left`] : []),
    humanUsd(cost_usd),
  ]
  const room = columns - width([status, ...parts, ''])
  const reason = progress.reason === undefined ? undefined : cut(visible(progress.reason), room)
  if (reason !== undefined) parts.push(reason)
  const styles: Partial<Record<string, 'yellow'>> = { [`${humanCount(failed)} failed`]: 'yellow' }
  if (reason !== undefined) styles[reason] = 'yellow'
  const fraction = total === 0 ? 0 : done / total
  return fitted(status, parts, styles, fraction, columns, paint)
}

export function uploadLine(sent: number, total: number, columns: number, paint: Paint): string {
  const parts = [
    `${String(percent(sent, total)).padStart(3)}%`,
    `${humanBytes(sent)} of ${humanBytes(total)}`,
  ]
  return fitted('uploading', parts, {}, total === 0 ? 1 : sent / total, columns, paint)
}

export function waitLine(what: string, columns: number, paint: Paint): string {
  return fitted(what, [], {}, null, columns, paint)
}

function fitted(
  head: string,
  parts: readonly string[],
  styles: Partial<Record<string, 'yellow'>>,
  fraction: number | null,
  columns: number,
  paint: Paint,
): string {
  let kept = [...parts]
  while (kept.length > 0 && width([head, ...kept]) > columns) kept = kept.slice(0, -1)
  if (kept.length === 0) return paint('bold', head.slice(0, Math.max(0, columns)))
  const spare = columns - width([head, ...kept]) - GAP.length
  const bar =
    fraction !== null && spare >= BAR_MIN ? [barText(fraction, Math.min(BAR_MAX, spare), paint)] : []
  const painted = kept.map((part) => {
    const style = styles[part]
    return style === undefined ? part : paint(style, part)
  })
  return [paint('bold', head), ...bar, ...painted].join(GAP)
}

const REASON_MIN = 20

/** Cuts a text to `columns`; undefined where there is too little room to be readable. */
function cut(text: string, columns: number): string | undefined {
  if (text.length <= columns) return text
  return columns < REASON_MIN ? undefined : `${text.slice(0, columns - 1)}…`
}

function width(parts: readonly string[]): number {
  return parts.join(GAP).length
}

function barText(fraction: number, cells: number, paint: Paint): string {
  const full = Math.floor(Math.min(1, Math.max(0, fraction)) * cells)
  return paint('green', '█'.repeat(full)) + paint('dim', '░'.repeat(cells - full))
}

/** Makes the line of progress, of at most `columns` columns. */
type Line = (columns: number, paint: Paint) => string

export interface ProgressView {
  /** Shows a line. Without a terminal, a change of `phase` is written at once. */
  show(phase: string, line: Line): void
  /** Writes a message that is not redrawn. */
  message(text: string): void
  /** Keeps the last line on the screen. May be called again; `show` may follow. */
  stop(): void
}

const PLAIN_INTERVAL_MS = 5000
const PLAIN_COLUMNS = 200

/** Makes the view. `isShared`: another program writes to the same terminal, so no line is redrawn. */
export function progressView(output: Output, clock: Clock, isShared = false): ProgressView {
  return output.isTTY === true && !isShared ? redrawn(output) : written(output, clock)
}

function redrawn(output: Output): ProgressView {
  const paint = paintFor(output)
  let line: Line = () => ''
  let active = false
  const bar = new SingleBar({
    stream: output,
    fps: 10,
    hideCursor: true,
    // The command handles signals and calls stop().
    gracefulExit: false,
    // The last column stays free: some terminals wrap a full line.
    format: (_options, { maxWidth }) => shown(line(maxWidth - 1, paint)),
  })
  const stop = (): void => {
    if (active) bar.stop()
    active = false
  }
  return {
    show(_phase, next) {
      line = next
      if (active) bar.update({})
      else bar.start(1, 0)
      active = true
    },
    message(text) {
      stop()
      writeLine(output, text)
    },
    stop,
  }
}

function written(output: Output, clock: Clock): ProgressView {
  let lastPhase: string | undefined
  let dueAt = 0
  let lastWritten: string | undefined
  let unwritten: string | undefined
  const write = (text: string): void => {
    writeLine(output, text)
    lastWritten = text
    unwritten = undefined
  }
  return {
    show(phase, line) {
      const text = line(PLAIN_COLUMNS, plain).replace(/[\u2588\u2591]+ +/, '')
      if (phase === lastPhase && clock.now() < dueAt) {
        unwritten = text === lastWritten ? undefined : text
        return
      }
      lastPhase = phase
      dueAt = clock.now() + PLAIN_INTERVAL_MS
      write(text)
    },
    message: write,
    stop() {
      if (unwritten !== undefined) write(unwritten)
    },
  }
}
