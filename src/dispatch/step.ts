// The one decision: what a line becomes that waits, and what a run waits for of which nothing is under way. Nothing is
// changed here: lines.ts moves the lines of a run, and dispatch.ts parks it.
import {
  FINISHED,
  FOLLOWING,
  type LineState,
  PAUSED,
  REMOTE,
  RETRYING,
  SEARCHING,
  UNFUNDED,
  UNSENT,
  UNSUBMITTED,
} from './line-state.ts'
import type { Run } from './run.ts'
import type { Lane } from './senders/lane.ts'

/** A reason to keep lines back: each is a file in gates/. */
export interface Gate {
  /** The state of a line that it keeps back. */
  readonly state: LineState
  /** When the line may go on (Unix ms), infinity where that is not known; null: now. */
  until(run: Run, position: number, now: number): number | null
  /** Has a line that is kept back placed again. Absent: all lines of its run are placed when anything changes. */
  keep?(run: Run, position: number): void
}

/**
 * The next state of a line that waits, or has waited. `FINISHED`: it ends with the answer that it has. `lane`: that of its
 * model; `gates`: in the order in which they count.
 */
export function next(
  run: Run,
  position: number,
  lane: Pick<Lane, 'prefersServers'>,
  gates: readonly Gate[],
  now: number,
): LineState {
  let to: LineState | null = null
  for (let i = 0; i < gates.length && to === null; i++)
    if (gates[i]!.until(run, position, now) !== null) to = gates[i]!.state
  to ??= lane.prefersServers(run, position, now) ? UNSENT : UNSUBMITTED
  return to === UNSENT || to === RETRYING || !mayStandIn(run, position) ? to : FINISHED
}

/**
 * Whether the line, which is asked again, ends with the answer that it has rather than waiting for long, or without a
 * reservation: it has cost something already.
 */
export function mayStandIn(run: Run, position: number): boolean {
  // A line that was sent has a model; one without is not known any more, or the database rejects its results.
  return run.triesOf(position)?.kept != null && run.lines[position]!.model !== null
}

/** The reason for which a run is parked; stored with its chunk. */
export type Wait = 'requeued' | 'remote_batch' | 'paused' | 'usage_limit' | 'model_unavailable'

/** The facts about a run beside the states of its lines. */
export interface RunFacts {
  isPaused: boolean
  /** Whether its lines that follow others follow lines of its own. */
  followsItself: boolean
  /** Whether its limits were just checked, and nothing that is not committed yet may make room. */
  isChecked: boolean
  /** Whether nothing can be sent for any of its models, for a while. */
  isBlocked: boolean
}

type RunState = Pick<Run, 'count' | 'unfinished' | 'isIdle' | 'isParking' | 'isClosed' | 'stopped'>

/** Whether all unfinished lines of the run are kept back, or wait for what a batch API has. */
export function isKeptBack(run: Pick<Run, 'count' | 'unfinished'>): boolean {
  const kept = run.count(UNFUNDED) + run.count(PAUSED) + run.count(REMOTE) + run.count(FOLLOWING)
  return kept === run.unfinished
}

/** The reason to park a run of which nothing is under way; null: it goes on. */
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
