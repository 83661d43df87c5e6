// SIGINT and SIGTERM: the first asks the command to end in order, the second ends the process at once.
import { EXIT_INTERRUPTED } from './failure.ts'

/** What of `process` is needed. */
export interface SignalSource {
  on(signal: 'SIGINT' | 'SIGTERM', listener: () => void): unknown
  exit(code: number): never
}

/** Returns a function that starts listening when first called; a command that never calls it dies as usual. */
export function interruption(source: SignalSource): () => AbortSignal {
  let controller: AbortController | undefined
  return () => {
    if (controller !== undefined) return controller.signal
    const first = new AbortController()
    const onSignal = (): void => {
      if (first.signal.aborted) source.exit(EXIT_INTERRUPTED)
      first.abort()
    }
    source.on('SIGINT', onSignal)
    source.on('SIGTERM', onSignal)
    controller = first
    return first.signal
  }
}
