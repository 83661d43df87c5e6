import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  FINISHED,
  FOLLOWING,
  IN_FLIGHT,
  LINE_STATES,
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
import { type Gate, next, type RunFacts, type Wait, waitOf } from './step.ts'

const NOW = 1_000

function gate(state: LineState, until: number | null): Gate {
  return { state, until: () => until }
}

/** What keeps the line back; whether a server is to get it; whether it has an answer, and a model; what it becomes. */
const LINES: [
  gates: Gate[],
  goesToServer: boolean,
  hasAnswer: boolean,
  model: string | null,
  to: LineState,
][] = [
  [[], true, false, 'm', UNSENT],
  [[], false, false, 'm', UNSUBMITTED],
  [[gate(PAUSED, null), gate(RETRYING, null)], true, false, 'm', UNSENT],
  [[gate(PAUSED, null), gate(RETRYING, 2_000)], true, false, 'm', RETRYING],
  [[gate(PAUSED, Number.POSITIVE_INFINITY), gate(RETRYING, 2_000)], true, false, 'm', PAUSED],
  // A line that is asked again, and has cost something already.
  [[], true, true, 'm', UNSENT],
  [[gate(RETRYING, 2_000)], true, true, 'm', RETRYING],
  [[], false, true, 'm', FINISHED],
  [[gate(UNFUNDED, Number.POSITIVE_INFINITY)], true, true, 'm', FINISHED],
  [[gate(PAUSED, Number.POSITIVE_INFINITY)], true, true, 'm', FINISHED],
  [[gate(PAUSED, Number.POSITIVE_INFINITY)], true, true, null, PAUSED],
]

for (const [gates, goesToServer, hasAnswer, model, to] of LINES) {
  const kept = gates
    .filter((one) => one.until({} as Run, 0, NOW) !== null)
    .map(({ state }) => LINE_STATES[state])
  const title = `${kept.join(', ') || 'kept back by nothing'}${goesToServer ? '' : ', for a batch API'}${hasAnswer ? `, asked again${model ? '' : ' of no model'}` : ''}`
  test(`a line becomes ${LINE_STATES[to]}: ${title}`, () => {
    const tries = hasAnswer ? { kept: {} } : undefined
    const run = { triesOf: () => tries, lines: [{ model }] } as unknown as Run
    assert.equal(next(run, 0, { prefersServers: () => goesToServer }, gates, NOW), to)
  })
}

const NO_FACTS: RunFacts = { isPaused: false, followsItself: false, isChecked: false, isBlocked: false }

/** The states of its unfinished lines, what else is known, why it was stopped, and what it waits for. */
const RUNS: [states: LineState[], facts: Partial<RunFacts>, stopped: Run['stopped'], wait: Wait | null][] = [
  [[], {}, null, null],
  [[IN_FLIGHT, PAUSED], {}, null, null],
  [[UNSENT], {}, null, null],
  // A stop comes first.
  [[UNFUNDED, REMOTE], {}, 'drained', 'requeued'],
  [[IN_FLIGHT], {}, 'drained', null],
  [[PAUSED], {}, 'lost', null],
  [[UNSENT], {}, 'batch_cancelled', null],
  [[REMOTE], {}, 'batch_cancelled', 'remote_batch'],
  [[REMOTE], {}, 'lost', null],
  // Batch APIs.
  [[REMOTE, PAUSED], {}, null, 'remote_batch'],
  [[REMOTE, FOLLOWING], { followsItself: true }, null, 'remote_batch'],
  [[REMOTE, FOLLOWING], {}, null, null],
  [[REMOTE, UNSENT], {}, null, null],
  [[REMOTE, UNFUNDED], {}, null, null],
  // Pauses.
  [[PAUSED, PAUSED], {}, null, 'paused'],
  [[PAUSED, UNFUNDED], {}, null, null],
  [[PAUSED, UNFUNDED], { isPaused: true }, null, 'paused'],
  [[UNFUNDED], { isPaused: true, isChecked: true }, null, 'paused'],
  // Limits.
  [[UNFUNDED], {}, null, null],
  [[UNFUNDED], { isChecked: true }, null, 'usage_limit'],
  [[UNFUNDED, REMOTE, PAUSED, FOLLOWING], { isChecked: true }, null, 'usage_limit'],
  [[UNFUNDED, UNSENT], { isChecked: true }, null, null],
  [[UNFUNDED, IN_FLIGHT], { isChecked: true }, null, null],
  // Models.
  [[UNSENT, RETRYING, UNSUBMITTED, FOLLOWING], { isBlocked: true }, null, 'model_unavailable'],
  [[UNSENT, SEARCHING], { isBlocked: true }, null, null],
  [[UNSENT, UNFUNDED], { isBlocked: true }, null, null],
]

for (const [states, facts, stopped, wait] of RUNS) {
  const known = Object.keys(facts).map((fact) => `, ${fact}`)
  const lines = states.map((state) => LINE_STATES[state]).join(' and ') || 'no'
  test(`a run waits for ${wait ?? 'nothing'}: ${lines} lines${known.join('')}, stopped: ${stopped}`, () => {
    const run = {
      ...{ unfinished: states.length, stopped, isParking: false, isClosed: false },
      isIdle: !states.includes(IN_FLIGHT),
      count: (state: LineState) => states.filter((one) => one === state).length,
    }
    assert.equal(waitOf(run, { ...NO_FACTS, ...facts }), wait)
    assert.equal(waitOf({ ...run, isParking: true }, { ...NO_FACTS, ...facts }), null)
  })
}
