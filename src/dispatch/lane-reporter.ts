// Tells the database which models this worker cannot reach, for everybody who asks why a batch waits. Written
// only when it changes, so a service that runs well writes nothing.
import type { Clock } from '../domain/clock.ts'
import { type LaneTrouble, setLaneReports } from '../store/lane-reports.ts'
import type { Store } from '../store/store.ts'
import type { Lane } from './lane.ts'

export interface LaneReporterOptions {
  store: Store
  clock: Clock
  worker_id: () => string
  lanes: () => ReadonlyMap<string, ReportedLane>
}

type ReportedLane = Pick<Lane, 'upstreams' | 'blocked' | 'waiting' | 'inFlight'>

export class LaneReporter {
  readonly #options: LaneReporterOptions
  readonly #since = new Map<string, LaneTrouble>()
  /** What the database has, and under which session. */
  #reported: { worker_id: string; text: string } = { worker_id: '', text: '[]' }

  constructor(options: LaneReporterOptions) {
    this.#options = options
  }

  /** To be called about once a second. */
  async report(): Promise<void> {
    const { store, worker_id } = this.#options
    const troubles = this.#troubles()
    const now = { worker_id: worker_id(), text: JSON.stringify(troubles) }
    // The reports of an earlier session went with it.
    const known = this.#reported.worker_id === now.worker_id ? this.#reported.text : '[]'
    if (known === now.text) return
    await store.write((tx) => setLaneReports(tx, now.worker_id, troubles))
    this.#reported = now
  }

  #troubles(): LaneTrouble[] {
    const { clock, lanes } = this.#options
    const now = clock.now()
    for (const [model, lane] of lanes()) {
      const state = stateOf(lane, now) ?? lasting(lane, this.#since.get(model))
      if (state === null) this.#since.delete(model)
      else if (this.#since.get(model)?.state !== state)
        this.#since.set(model, { model, state, since: downSince(lane) ?? now })
    }
    return [...this.#since.values()]
  }
}

/** A lane is down when every server has failed, also while one of them is being probed. */
function stateOf(lane: Pick<Lane, 'upstreams' | 'blocked'>, now: number): LaneTrouble['state'] | null {
  if (lane.upstreams.length > 0 && lane.upstreams.every(({ circuit }) => circuit.open)) return 'unavailable'
  return lane.blocked(now) ? 'throttled' : null
}

/**
 * Between two pauses that it asked for, a server is tried: until one of those lines is answered, or none is left,
 * nothing has changed.
 */
function lasting({ upstreams, waiting, inFlight }: ReportedLane, trouble: LaneTrouble | undefined) {
  if (trouble?.state !== 'throttled' || waiting + inFlight === 0) return null
  return upstreams.some(({ limit }) => (limit.answeredAt ?? 0) > trouble.since) ? null : trouble.state
}

/** Since when none of its servers answers (Unix ms); null while one does. */
function downSince({ upstreams }: Pick<Lane, 'upstreams'>): number | null {
  const opened = upstreams.map(({ circuit }) => circuit.openedAt)
  return opened.includes(null) ? null : Math.max(...opened.map((at) => at ?? 0))
}
