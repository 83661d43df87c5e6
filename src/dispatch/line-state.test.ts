import assert from 'node:assert/strict'
import { test } from 'node:test'
import { unsentRun } from '../../test/support/unsent-run.ts'
import { ensureTries } from './gates/retries.ts'
import {
  FINISHED,
  FOLLOWING,
  type Gate,
  IN_FLIGHT,
  LINE_STATES,
  type LineState,
  next,
  PAUSED,
  REMOTE,
  RETRYING,
  type RunFacts,
  SEARCHING,
  UNFUNDED,
  UNSENT,
  UNSUBMITTED,
  type Wait,
  waitOf,
} from './line-state.ts'
import type { LineTries, Run } from './run.ts'

const NOW = 1_000

function gate(state: LineState, until: number | null): Gate<AnyRun> {
  return { state, until: () => until }
}

interface AnyRun {
  mayStandIn: () => boolean
}

/** What keeps the line back; whether a server is to get it; whether an answer may stand in; what it becomes. */
const LINES: [gates: Gate<AnyRun>[], goesToServer: boolean, hasAnswer: boolean, to: LineState][] = [
  [[], true, false, UNSENT],
  [[], false, false, UNSUBMITTED],
  [[gate(PAUSED, null), gate(RETRYING, null)], true, false, UNSENT],
  [[gate(PAUSED, null), gate(RETRYING, 2_000)], true, false, RETRYING],
  [[gate(PAUSED, Number.POSITIVE_INFINITY), gate(RETRYING, 2_000)], true, false, PAUSED],
  // A line that is asked again, and has cost something already.
  [[], true, true, UNSENT],
  [[gate(RETRYING, 2_000)], true, true, RETRYING],
  [[], false, true, FINISHED],
  [[gate(UNFUNDED, Number.POSITIVE_INFINITY)], true, true, FINISHED],
  [[gate(PAUSED, Number.POSITIVE_INFINITY)], true, true, FINISHED],
]

for (const [gates, goesToServer, hasAnswer, to] of LINES) {
  const kept = gates
    .filter((one) => one.until({ mayStandIn: () => hasAnswer }, 0, NOW) !== null)
    .map(({ state }) => LINE_STATES[state])
  const title = `${kept.join(', ') || 'kept back by nothing'}${goesToServer ? '' : ', for a batch API'}${hasAnswer ? ', asked again' : ''}`
  test(`a line becomes ${LINE_STATES[to]}: ${title}`, () => {
    const run = { mayStandIn: () => hasAnswer }
    assert.equal(next(run, 0, { prefersServers: () => goesToServer }, gates, NOW), to)
  })
}

test('an answer stands in for another one only while its line has a model', () => {
  const run = unsentRun({ prompts: ['a', 'b'] })
  Object.assign(run.lines[1]!, { model: null })
  for (const position of [0, 1]) ensureTries(run, position).kept = {} as LineTries['kept']
  assert.deepEqual([run.mayStandIn(0), run.mayStandIn(1)], [true, false])
})

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
