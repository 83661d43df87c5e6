// The metrics of a registry as text. Making it asks the database and the workers, so it is made at most once a second
// however many ask for it, and never twice at once.
import type { Registry } from 'prom-client'
import type { Clock } from '../domain/clock.ts'

const KEPT_MS = 1_000

export class MetricsText {
  readonly #registry: Registry
  readonly #clock: Clock
  /** `at`: null while it is being made. */
  #made: { at: number | null; text: Promise<string> } | null = null

  constructor(registry: Registry, clock: Clock) {
    this.#registry = registry
    this.#clock = clock
  }

  get contentType(): string {
    return this.#registry.contentType
  }

  /** At most a second old. A failure is kept as long as a text. */
  read(): Promise<string> {
    if (this.#made && (this.#made.at === null || this.#isFresh(this.#made.at))) return this.#made.text
    const made: { at: number | null; text: Promise<string> } = { at: null, text: this.#registry.metrics() }
    this.#made = made
    const end = (): void => {
      made.at = this.#clock.now()
    }
    made.text.then(end, end)
    return made.text
  }

  #isFresh(at: number): boolean {
    const age = this.#clock.now() - at
    // A clock that was set back counts as a second that has passed.
    return age >= 0 && age < KEPT_MS
  }
}
