// A cell holds a value that components of different branches share: the session, the address, the latest batches.
import { useEffect, useState } from 'preact/hooks'

export class Cell<T> {
  #value: T
  readonly #listeners = new Set<() => void>()

  constructor(value: T) {
    this.#value = value
  }

  get value(): T {
    return this.#value
  }

  set(value: T): void {
    if (Object.is(value, this.#value)) return
    this.#value = value
    for (const listener of [...this.#listeners]) listener()
  }

  /** Adds a listener. Returns a function that removes it. */
  watch(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => void this.#listeners.delete(listener)
  }
}

export function useCell<T>(cell: Cell<T>): T {
  const [, redraw] = useState({})
  useEffect(() => cell.watch(() => redraw({})), [cell])
  return cell.value
}
