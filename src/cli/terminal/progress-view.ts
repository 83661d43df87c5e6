// Shows progress: on a terminal as one line that is redrawn in place, elsewhere (a log, a pipe) as a plain line at
// every change of phase and every few seconds in between.
import { SingleBar } from 'cli-progress'
import type { Clock } from '../../domain/clock.ts'
import { type Output, type Paint, paintFor, plain, shown, writeLine } from './terminal.ts'

/** Returns a line of at most `columns` columns. */
type Line = (columns: number, paint: Paint) => string

export interface ProgressView {
  /** Without a terminal, a change of `phase` is written at once. */
  show(phase: string, line: Line): void
  /** Writes a message that is not redrawn. */
  message(text: string): void
  /** Keeps the last line on the screen. May be called again; `show` may follow. */
  stop(): void
}

const PLAIN_INTERVAL_MS = 5000
const PLAIN_COLUMNS = 200

export function progressView(output: Output, clock: Clock): ProgressView {
  return output.isTTY === true ? redrawn(output) : written(output, clock)
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
      const text = line(PLAIN_COLUMNS, plain).replace(/[█░]+ +/, '')
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
