// Collects the changes of one turn of the event loop, in which many answers arrive at once. At its end their results
// are recorded, limits are checked, further lines are sent and chunks are claimed, once for all of them.
import type { Clock } from '../domain/clock.ts'
import type { Run } from './run.ts'

/** The actions at the end of a turn. */
export interface TurnEnd {
  /** Of which lines ended, or nothing is in flight any more. */
  runs: readonly Run[]
  /** Lines wait for a check of the limits. */
  checksLimits: boolean
}

export class Turn {
  readonly #clock: Pick<Clock, 'soon'>
  #runs: Run[] = []
  #checksLimits = false
  #isScheduled = false
  #end: (turn: TurnEnd) => void = () => {}

  constructor(clock: Pick<Clock, 'soon'>) {
    this.#clock = clock
  }

  /** From now on, `end` is called at the end of each turn in which something changed. */
  begin(end: (turn: TurnEnd) => void): void {
    this.#end = end
  }

  /** Lines of the run ended, or it may be idle now. */
  touch(run: Run): void {
    if (!run.isTouched) {
      run.isTouched = true
      this.#runs.push(run)
    }
    this.schedule()
  }

  /** Lines wait for a check of the limits. */
  checkLimits(): void {
    this.#checksLimits = true
    this.schedule()
  }

  /** Lines may be sent. */
  schedule(): void {
    if (this.#isScheduled) return
    this.#isScheduled = true
    this.#clock.soon(() => {
      const runs = this.#runs
      const checksLimits = this.#checksLimits
      this.#runs = []
      this.#checksLimits = false
      this.#isScheduled = false
      for (const run of runs) run.isTouched = false
      this.#end({ runs, checksLimits })
    })
  }
}
