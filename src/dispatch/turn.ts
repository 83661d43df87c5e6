// The list of what the parts of a worker find out. A part pushes a value, and calls nobody above it; the values are taken
// in the order in which they came, before anything else is done (dispatch.ts). What one turn of the event loop brings, in
// which many answers arrive at once, is handled together at its end: results are recorded, limits are checked, further
// lines are sent and chunks are claimed, once for all of them.
import type { Clock } from '../domain/clock.ts'
import type { Recorded } from '../results/recorder.ts'
import type { Examined } from './gates/reasks.ts'
import type { Freed } from './gates/retries.ts'
import type { Run, RunStop } from './run.ts'

export type Change =
  | Freed
  | Examined
  /** The first line of the run was sent, and its batch was queued. */
  | { kind: 'begun'; run: Run }
  /** Limits were checked for lines of the run, and these are placed. */
  | { kind: 'checked'; run: Run }
  /** The run may send no further line. `broken`: a line is in a wrong state. */
  | { kind: 'stopped'; run: Run; reason: RunStop | 'broken' }
  | Recorded<Run>
  /** Chunks may be there to be claimed. */
  | { kind: 'ready' }

export interface TurnEnd {
  /** Runs of which lines ended, or of which nothing may be under way any more. */
  runs: readonly Run[]
  /** Whether lines wait for a check of the limits. */
  checksLimits: boolean
}

interface TurnHandler {
  apply(change: Change): void
  end(turn: TurnEnd): void
}

export class Turn {
  readonly #clock: Pick<Clock, 'soon'>
  #changes: Change[] = []
  #runs: Run[] = []
  #checksLimits = false
  #isScheduled = false
  #handler: TurnHandler = { apply() {}, end() {} }

  constructor(clock: Pick<Clock, 'soon'>) {
    this.#clock = clock
  }

  begin(handler: TurnHandler): void {
    this.#handler = handler
  }

  push(change: Change): void {
    if (this.#changes.push(change) === 1) queueMicrotask(() => this.#drain())
  }

  #drain(): void {
    // What is pushed meanwhile is taken as well.
    for (let i = 0; i < this.#changes.length; i++) this.#handler.apply(this.#changes[i]!)
    this.#changes = []
  }

  touch(run: Run): void {
    if (!run.isTouched) {
      run.isTouched = true
      this.#runs.push(run)
    }
    this.schedule()
  }

  checkLimits(): void {
    this.#checksLimits = true
    this.schedule()
  }

  /** Ends the turn soon: lines may be sent. */
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
      this.#handler.end({ runs, checksLimits })
    })
  }
}
