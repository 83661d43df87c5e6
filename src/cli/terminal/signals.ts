// SIGINT and SIGTERM: the first asks the command to end in order, the second ends the process at once. Under npm
// neither can be taken at face value: npm passes a terminal's Ctrl-C on to a process that had it already, and a
// SIGTERM of npm ends the shell between npm and the command, which hears nothing but that its parent is gone.
import type { Clock } from '../../domain/clock.ts'
import { EXIT_INTERRUPTED } from './failure.ts'

/** What of `process` is needed. */
export interface SignalSource {
  readonly ppid: number
  on(signal: 'SIGINT' | 'SIGTERM', listener: () => void): unknown
  exit(code: number): never
}

export interface InterruptionOptions {
  clock: Clock
  /** npx or an npm script has started the process. */
  underNpm: boolean
}

/** Under npm, a second signal that comes so soon is the first, passed on. */
const PASSED_ON_MS = 300
const LOOK_FOR_PARENT_MS = 250

/** Returns a function that starts listening when first called; a command that never calls it dies as usual. */
export function interruption(source: SignalSource, options: InterruptionOptions): () => AbortSignal {
  const { clock, underNpm } = options
  let controller: AbortController | undefined
  return () => {
    if (controller !== undefined) return controller.signal
    const asked = new AbortController()
    let askedAt = 0
    const onSignal = (): void => {
      const now = clock.now()
      if (!asked.signal.aborted) {
        askedAt = now
        asked.abort()
      } else if (!underNpm || now - askedAt > PASSED_ON_MS) source.exit(EXIT_INTERRUPTED)
    }
    source.on('SIGINT', onSignal)
    source.on('SIGTERM', onSignal)
    if (underNpm) whenOrphaned(source, clock, asked)
    controller = asked
    return asked.signal
  }
}

function whenOrphaned(source: SignalSource, clock: Clock, asked: AbortController): void {
  const parent = source.ppid
  const look = (): void => {
    if (asked.signal.aborted) return
    if (source.ppid !== parent) asked.abort()
    else clock.after(LOOK_FOR_PARENT_MS, look)
  }
  look()
}
