// The states of a line of a leased chunk, and the legal transitions between them. A run (run.ts) keeps one of them for
// each of its lines and changes it by `move` alone. docs/state-machine.md shows them as a table.

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

/** Where a line that waits may be placed anew. */
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

/** By state, a bit for each state that may follow. */
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
