// Listens to an AbortSignal once for all attempts that share it. EventTarget searches its list whenever a listener is
// added or removed, which takes microseconds with hundreds of attempts in flight; a Set does not.

interface Abortable {
  abort(): void
}

export class AbortWatch {
  readonly #watched = new WeakMap<AbortSignal, Set<Abortable>>()

  /** Calls `attempt.abort()` when `signal` aborts, until `leave` is called with both. */
  enter(signal: AbortSignal, attempt: Abortable): void {
    let attempts = this.#watched.get(signal)
    if (attempts === undefined) {
      const watched = new Set<Abortable>()
      signal.addEventListener('abort', () => abortAll(watched), { once: true })
      this.#watched.set(signal, watched)
      attempts = watched
    }
    attempts.add(attempt)
  }

  leave(signal: AbortSignal, attempt: Abortable): void {
    this.#watched.get(signal)?.delete(attempt)
  }
}

function abortAll(attempts: Set<Abortable>): void {
  // Aborting an attempt makes it leave; the copy keeps the walk whole.
  for (const attempt of [...attempts]) attempt.abort()
}
