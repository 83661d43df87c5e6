// The states of a line of a leased chunk, the legal transitions between them, and the one decision: what a line becomes that
// waits, and what a run waits for of which nothing is under way. All of it is pure: a run (run.ts) keeps a state for each
// of its lines, lines.ts moves them, and dispatch.ts parks runs. docs/state-machine.md shows the transitions as a table.

export const LINE_STATES = [
  /** Waits for a check of the limits; every line begins here. */
  'unfunded',
  /** Belongs to a paused batch or model. */
  'paused',
  /** Waits in the queue of a lane for a model server. */
  'unsent',
  /** Missed an answer, and waits for its next attempt. */
  'retrying',
  /** Waits for the end of an identical line. */
  'following',
  /** Waits for the search of its answer among the results of an identical line. */
  'searching',
  /** A model server has it, or its answer is being checked. */
  'in flight',
  /** Waits to be handed to a batch API. */
  'unsubmitted',
  /** A batch API has it, or may have it. */
  'remote',
  /** Has a result that no commit has counted. */
  'finished',
  /** Has a result that counts. */
  'committed',
] as const

type LineStateName = (typeof LINE_STATES)[number]

/** The state as a byte: its index in `LINE_STATES`. */
export type LineState = number

export const UNFUNDED = 0
export const PAUSED = 1
export const UNSENT = 2
export const RETRYING = 3
export const FOLLOWING = 4
export const SEARCHING = 5
export const IN_FLIGHT = 6
export const UNSUBMITTED = 7
export const REMOTE = 8
export const FINISHED = 9
export const COMMITTED = 10

/** The states in which a waiting line may be placed anew. */
const WAITING = ['unfunded', 'paused', 'unsent', 'retrying', 'unsubmitted'] as const

export const LINE_TRANSITIONS: Readonly<Record<LineStateName, readonly LineStateName[]>> = {
  unfunded: ['paused', 'unsent', 'retrying', 'unsubmitted', 'remote', 'finished', 'committed'],
  paused: ['unfunded', 'unsent', 'retrying', 'unsubmitted', 'finished'],
  unsent: ['unfunded', 'paused', 'following', 'searching', 'in flight', 'unsubmitted', 'finished'],
  retrying: ['unfunded', 'paused', 'unsent', 'unsubmitted', 'finished'],
  following: [...WAITING, 'finished'],
  searching: [...WAITING, 'finished'],
  'in flight': [...WAITING, 'finished'],
  unsubmitted: ['unfunded', 'paused', 'unsent', 'following', 'searching', 'remote', 'finished'],
  remote: [...WAITING, 'finished'],
  finished: ['committed'],
  committed: [],
}

/** A bit for each state that may follow, by state. */
const LEGAL = Uint16Array.from(LINE_STATES, (from) =>
  LINE_TRANSITIONS[from].reduce((bits, to) => bits | (1 << LINE_STATES.indexOf(to)), 0),
)

export function isLegal(from: LineState, to: LineState): boolean {
  return (LEGAL[from]! & (1 << to)) !== 0
}

/** A mistake of this program: the state of a line was to change in a way that the table does not have. */
export class IllegalTransition extends Error {
  constructor(line: string, from: LineState, to: LineState, cause: string) {
    super(`${line} cannot become ${LINE_STATES[to]} from ${LINE_STATES[from]}: ${cause}`)
    this.name = 'IllegalTransition'
  }
}

/** A reason to keep lines back: each is a file in gates/. */
export interface Gate<Run> {
  /** The state of a line that the gate keeps back. */
  readonly state: LineState
  /** The time at which the line may go on (Unix ms), infinity for an unknown time; null: now. */
  until(run: Run, position: number, now: number): number | null
  /** Arranges that a line kept back is placed again. Absent: any change places all lines of its run. */
  keep?(run: Run, position: number): void
}

/** The next state of a waiting line. `FINISHED`: it ends with its present answer. `gates`: the first one counts. */
export function next<Run extends { mayStandIn: (position: number) => boolean }>(
  run: Run,
  position: number,
  lane: { prefersServers: (run: Run, position: number, now: number) => boolean },
  gates: readonly Gate<Run>[],
  now: number,
): LineState {
  let to: LineState | null = null
  for (let i = 0; i < gates.length && to === null; i++)
    if (gates[i]!.until(run, position, now) !== null) to = gates[i]!.state
  to ??= lane.prefersServers(run, position, now) ? UNSENT : UNSUBMITTED
  return to === UNSENT || to === RETRYING || !run.mayStandIn(position) ? to : FINISHED
}

/** The reason for which a run is parked; stored with its chunk. */
export type Wait = 'requeued' | 'remote_batch' | 'paused' | 'usage_limit' | 'model_unavailable'

/** The facts about a run beside the states of its lines. */
export interface RunFacts {
  isPaused: boolean
  /** Whether the leaders of its followers are in the run. */
  followsItself: boolean
  /** Whether its limits were just checked, and no uncommitted line may make room. */
  isChecked: boolean
  /** Whether nothing can be sent for any of its models, for a while. */
  isBlocked: boolean
}

interface LineCounts {
  count(state: LineState): number
  readonly unfinished: number
}

interface RunState extends LineCounts {
  readonly isIdle: boolean
  readonly isParking: boolean
  readonly isClosed: boolean
  readonly stopped: string | null
}

/** Whether all unfinished lines of the run are kept back, or wait for results of a batch API. */
export function isKeptBack(run: LineCounts): boolean {
  const kept = run.count(UNFUNDED) + run.count(PAUSED) + run.count(REMOTE) + run.count(FOLLOWING)
  return kept === run.unfinished
}

/** The reason to park a run without work under way; null: the run continues. */
export function waitOf(run: RunState, facts: RunFacts): Wait | null {
  const { unfinished, stopped } = run
  if (unfinished === 0 || !run.isIdle || run.isParking || run.isClosed || stopped === 'lost') return null
  if (stopped === 'drained') return 'requeued'
  const [unfunded, paused, remote] = [run.count(UNFUNDED), run.count(PAUSED), run.count(REMOTE)]
  // Also of a run that has stopped: what a batch API has is collected by the next claim.
  if (remote > 0 && unfunded === 0 && isKeptBack(run) && (run.count(FOLLOWING) === 0 || facts.followsItself))
    return 'remote_batch'
  if (stopped !== null) return null
  if (paused + (facts.isPaused ? unfunded : 0) === unfinished) return 'paused'
  if (facts.isChecked && unfunded > 0 && isKeptBack(run)) return 'usage_limit'
  const isSendable = unfunded + paused + remote + run.count(SEARCHING) === 0
  return facts.isBlocked && isSendable ? 'model_unavailable' : null
}
