// Notices when the whole machine stood still, as virtual ones do now and then: whoever waited meanwhile waited for
// the machine, and a lease may have run out under a worker that did nothing wrong.

const TICK_MS = 100
const STILL_MS_MIN = 1_000

export interface Standstill {
  /** Unix ms. */
  from: number
  to: number
}

export class StandstillWatch {
  readonly found: Standstill[] = []
  readonly #timer: NodeJS.Timeout

  constructor() {
    let last = Date.now()
    this.#timer = setInterval(() => {
      const now = Date.now()
      if (now - last > STILL_MS_MIN) this.found.push({ from: last, to: now })
      last = now
    }, TICK_MS)
    this.#timer.unref()
  }

  /** How long, all in all, in ms. */
  get total_ms(): number {
    return this.found.reduce((sum, { from, to }) => sum + to - from, 0)
  }

  end(): void {
    clearInterval(this.#timer)
  }
}
