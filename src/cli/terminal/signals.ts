// SIGINT and SIGTERM: the first signal starts a graceful shutdown, the second ends the process at once. Under npm two
// things differ: npm forwards a terminal's Ctrl-C to a process that already received it, and a SIGTERM to npm ends
// the shell between npm and the command, which can notice only that its parent process has exited.
import { once } from 'node:events'
import type { Clock } from '../../domain/clock.ts'
import { EXIT_INTERRUPTED } from './failure.ts'

/** The parts of `process` that are used. */
interface SignalSource {
  readonly ppid: number
  on(signal: 'SIGINT' | 'SIGTERM', listener: () => void): unknown
  exit(code: number): never
}

interface InterruptionOptions {
  clock: Clock
  /** Whether npx or an npm script started the process. */
  underNpm: boolean
}

/** Under npm, a second signal within this time is the first one, forwarded. */
const PASSED_ON_MS = 300
const LOOK_FOR_PARENT_MS = 250

/** Returns a function that installs the handlers at its first call. Without a call, signals end the process as usual. */
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

/** Resolves when the signal aborts. */
export async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) await once(signal, 'abort')
}
