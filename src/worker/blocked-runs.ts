// Makes room when a worker can open no more chunks: runs whose unfinished lines all wait for unavailable models are
// parked, after their finished lines were journalled, and claimed again later. So an unavailable model cannot fill a
// worker with lines that cannot be sent. In the same way chunks are left to workers that can reach a server which this one
// cannot.
import type { Lane } from '../dispatch/lane.ts'
import { FOLLOWING, RETRYING, UNSENT, UNSUBMITTED } from '../dispatch/line-state.ts'
import type { Run } from '../dispatch/run.ts'
import type { Clock } from '../domain/clock.ts'

/** How long a chunk stays parked, at least; with jitter. */
const PARK_MS = 1_500
/** How often the open runs are checked. */
const CHECK_MS = 250

interface BlockedRunsOptions {
  clock: Clock
  /** In [0, 1). */
  random: () => number
  lanes: ReadonlyMap<string, Pick<Lane, 'blocked'>>
  runs: () => Iterable<Run>
  park: (run: Run, runAt: number) => void
}

export class BlockedRuns {
  readonly #options: BlockedRunsOptions
  #checkAt = 0

  constructor(options: BlockedRunsOptions) {
    this.#options = options
  }

  /** Parks the runs of which no line can be sent now. */
  park(): void {
    const now = this.#options.clock.now()
    if (now < this.#checkAt && this.#checkAt - now <= CHECK_MS) return
    this.#checkAt = now + CHECK_MS
    this.#parkIf(() => true)
  }

  /** Parks the runs of which no line can be sent now because of these models. */
  leaveToOthers(models: readonly string[]): void {
    this.#parkIf((waitsFor) => [...waitsFor].every((model) => models.includes(model)))
  }

  #parkIf(accepts: (waitsFor: ReadonlySet<string>) => boolean): void {
    const { clock, random, lanes, runs, park } = this.#options
    const now = clock.now()
    for (const run of [...runs()]) {
      const models = blockedModels(run, lanes, now)
      if (models && accepts(models)) park(run, Math.ceil(now + PARK_MS * (1 + random())))
    }
  }
}

/** The models that a run's unfinished lines wait for, if none of these lines can be sent now; else null. */
function blockedModels(
  run: Run,
  lanes: BlockedRunsOptions['lanes'],
  now: number,
): ReadonlySet<string> | null {
  if (!run.mayMove || !run.isIdle || run.unfinished === 0) return null
  const waiting = run.count(UNSENT) + run.count(RETRYING) + run.count(UNSUBMITTED) + run.count(FOLLOWING)
  if (waiting < run.unfinished) return null
  const { models } = run
  for (const model of models) if (!lanes.get(model)?.blocked(now, run.batch.id)) return null
  return models
}
