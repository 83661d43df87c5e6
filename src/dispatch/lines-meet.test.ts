// Combines pauses, checks of the limits, misses, answers, batch APIs, reloads and cancellations in random order, with
// identical lines in two chunks. Each line must end once, and its lane and its funds must count nothing afterwards.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { ANSWER, type ScriptedAttempt } from '../../test/fakes/scripted-backend.ts'
import { linesIn } from '../../test/support/line-world.ts'
import { queuedBatch } from '../../test/support/queued-batch.ts'
import type { BatchApi } from '../backends/batch-api/batch-api.ts'
import { nanosFromUsd } from '../domain/money.ts'
import { IN_FLIGHT, PAUSED, REMOTE, UNFUNDED, UNSUBMITTED } from './line-state.ts'
import { Run } from './run.ts'
import { BatchApiUpstream } from './senders/batch-apis/batch-api-upstream.ts'
import { Route } from './senders/routes.ts'

const RUNS = 300
/** The same orders each time; another seed finds others. */
const SEED = 1
const ERROR = { error: { message: 'a bug' } }

const STEPS = [
  'answer',
  'miss',
  'cut',
  'fail',
  'throttle',
  'reject',
  'pause',
  'hold',
  'check',
  'submit',
  'leave',
  'collect',
  'route',
  'advance',
  'cancel',
  'close',
] as const

const steps = fc.array(fc.tuple(fc.constantFrom(...STEPS), fc.nat(100)), {
  minLength: 20,
  maxLength: 60,
  size: 'max',
})

const SAID = {
  answer: { message: { role: 'assistant', content: '{"said":1}' } },
  miss: { message: { role: 'assistant', content: '{"missed":1}' } },
  cut: { finish_reason: 'length' },
}

function isAskedAgain({ reason }: { reason?: string }): boolean {
  return reason === 'not_schema' || reason === 'cut_off'
}

/** A line that has failed is left, and no fresh one beside it. */
const FAILED_ALONE: [(typeof STEPS)[number], number][] = [
  ...[
    ['fail', 0],
    ['hold', 0],
    ['pause', 0],
    ['hold', 0],
    ['submit', 0],
    ['collect', 0],
    ['submit', 0],
    ['reject', 20],
  ],
  ...[
    ['reject', 20],
    ['route', 11],
    ['check', 2],
    ['reject', 20],
    ['submit', 0],
    ['reject', 20],
    ['close', 5],
  ],
  ...[
    ['fail', 21],
    ['advance', 4],
    ['pause', 0],
    ['submit', 0],
    ['fail', 0],
    ['answer', 0],
  ],
] as [(typeof STEPS)[number], number][]

const NANOS_OF_AN_ANSWER = 5_000

test(`whatever meets in ${RUNS} orders, each line ends once, and every answer is billed`, {
  timeout: 120_000,
}, async () => {
  await using queued = await queuedBatch({
    chunks: 2,
    lines: 5,
    dedupe: 'all',
    reask: { max: 2, mode: 'repeat' },
    content: (line) => `${line % 2}`,
  })
  const chunks = await queued.open()
  const seen = { again: 0 }

  const play = async (moves: readonly [(typeof STEPS)[number], number][]): Promise<void> => {
    const runs = chunks.map(({ claim, batch, lines, bytes }) => new Run(claim, batch, lines, bytes))
    const remote = new BatchApiUpstream({
      name: 'batch-api',
      api: { close: async () => {} } as BatchApi,
      concurrency_max: 4,
      modelAlias: null,
    })
    const world = linesIn(queued, runs, {
      concurrency: 3,
      retry: { attempts_max: 4, throttled_attempts_max: 50 },
      upstreams: (server) => [server, remote],
    })
    const { lines, lane, modelServer, server, funds } = world
    let answers = 0
    const answer = async (attempt: ScriptedAttempt | undefined, how: keyof typeof SAID): Promise<void> => {
      if (!attempt) return
      answers++
      const [choice] = ANSWER.choices
      await attempt.respond(200, { ...ANSWER, choices: [{ ...choice, ...SAID[how] }] })
    }
    const routes = [[modelServer, remote], [modelServer], [remote]].map((some) => new Route(some))
    for (const run of runs) {
      run.isLimited = true
      for (const position of run.positions()) run.setAllowed(position, true)
      await world.start(run)
    }
    for (const [step, n] of moves) {
      const run = runs[n % 2]!
      const attempt = server.inFlight[n % Math.max(1, server.inFlight.length)]
      const now = world.clock.now()
      const there = run.positions(REMOTE)
      const ended = { upstream: remote, at: now, now }
      if (step === 'answer' || step === 'miss' || step === 'cut') await answer(attempt, step)
      else if (step === 'fail') await attempt?.respond(500, ERROR)
      else if (step === 'throttle') await attempt?.respond(429, {})
      else if (step === 'reject' && n < 20) await attempt?.respond(400, ERROR)
      else if (step === 'pause') {
        world.paused = !world.paused
        for (const one of runs) lines.placeAll(one, 'a pause')
      } else if (step === 'hold' && run.mayMove) lines.holdForCheck(run)
      else if (step === 'check' && run.mayMove) {
        for (const position of run.positions(UNFUNDED, PAUSED)) {
          run.setAllowed(position, n % 3 > 0)
          funds.setReserved(run, position, n % 3 > 0)
        }
        lines.checked(run)
      } else if (step === 'submit' && run.mayMove) {
        for (const position of run.positions(UNSUBMITTED))
          if (run.stateOf(position) === UNSUBMITTED) lines.begin(run, position, now, REMOTE)
      } else if (step === 'leave' && !run.isClosed)
        for (const position of there)
          lines.missed(run, position, { kind: 'throttled', status: 429, reason: 'no' }, 'server', ended)
      else if (step === 'collect' && !run.isClosed)
        for (const position of there) lines.place(run, position, 'it has no answer')
      else if (step === 'route') {
        lane.route = routes[n % 3]!
        lines.review(runs)
        lines.modelsChanged(runs)
      } else if (step === 'advance') await world.advance(n * 20)
      else if (step === 'cancel' && n < 10) lines.stop(run, 'batch_cancelled', false)
      else if (step === 'close' && n < 5 && !run.isClosed) lines.close(run, true)
      await world.settled()
    }
    // Nothing keeps a line from here on.
    world.paused = false
    lane.route = routes[1]!
    for (let rounds = 0; runs.some((run) => !run.isClosed && run.unfinished > 0); rounds++) {
      assert.ok(rounds < 1_000, 'some line never ends')
      for (const run of runs) {
        if (run.isClosed || run.stopped !== null) continue
        for (const position of run.positions(UNFUNDED)) run.setAllowed(position, true)
        for (const position of run.positions(REMOTE)) lines.place(run, position, 'it has no answer')
        lines.placeAll(run, 'the end')
      }
      for (const attempt of [...server.inFlight]) await answer(attempt, 'answer')
      for (const run of runs)
        if (run.stopped !== null && !run.isClosed && run.count(IN_FLIGHT) === 0 && run.unfinished > 0)
          for (const position of run.positions(REMOTE)) {
            const now = world.clock.now()
            const result = { kind: 'throttled', status: 429, reason: 'no' } as const
            lines.missed(run, position, result, 'server', { upstream: remote, at: now, now })
          }
      await world.advance(1_000)
    }
    for (const attempt of [...server.inFlight]) await answer(attempt, 'answer')
    if (runs.every((run) => !run.isClosed)) {
      const records = runs.flatMap((run) =>
        run.lines.map((_, position) => JSON.parse(String(run.results.fieldOf(position, 'audit')))),
      )
      const nanos = records.reduce((sum, { cost_usd }) => sum + nanosFromUsd(cost_usd), 0)
      assert.equal(nanos, answers * NANOS_OF_AN_ANSWER)
      seen.again += records.filter(({ attempts }) => attempts.some(isAskedAgain)).length
    }
    for (const run of runs) {
      if (!run.isClosed) assert.equal(new Set(run.results.fresh.positions).size, run.lines.length)
      if (!run.isClosed) lines.close(run, false)
    }
    assert.deepEqual([lane.unsent, lane.retrying, lane.unsubmitted], [0, 0, 0])
    assert.equal(modelServer.limit.inFlight, 0)
    assert.deepEqual(
      world.logged.filter(({ level }) => level === 'error'),
      [],
    )
    lines.end()
    lane.close()
  }
  await fc.assert(fc.asyncProperty(steps, play), { numRuns: RUNS, seed: SEED, examples: [[FAILED_ALONE]] })
  assert.ok(seen.again > RUNS / 3, `${seen.again} lines were asked again`)
})
