// An API key in a file that may be replaced while the service runs. It is looked at about once a second at most; while
// it cannot be read, or is empty, the key that was known last is used.
import { readFileSync, statSync } from 'node:fs'

const LOOK_MS = 1_000

export class KeyFile {
  readonly #path: string
  #key: string | null = null
  #changed = Number.NaN
  #lookedAt = Number.NEGATIVE_INFINITY

  constructor(path: string) {
    this.#path = path
  }

  /** `now` in ms of any clock; null before a key could be read. */
  read(now: number = performance.now()): string | null {
    if (now - this.#lookedAt < LOOK_MS) return this.#key
    this.#lookedAt = now
    try {
      const { mtimeMs } = statSync(this.#path)
      if (mtimeMs === this.#changed) return this.#key
      const key = readFileSync(this.#path, 'utf8').trim()
      if (key !== '') this.#key = key
      this.#changed = mtimeMs
    } catch {
      // It may just be replaced.
    }
    return this.#key
  }
}
