// Tests combinations of features on one line: pauses, limits, retries, identical requests, reloads and both executors.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { ANSWER } from '../../test/fakes/scripted-backend.ts'
import { linesIn, lineWorld } from '../../test/support/line-world.ts'
import { queuedBatch, RETRY } from '../../test/support/queued-batch.ts'
import type { BatchApi } from '../backends/batch-api/batch-api.ts'
import { ResponseMemory } from '../backends/response-memory.ts'
import { accountOfLimit } from '../domain/limit.ts'
import { AnswerScanner } from '../jsonl/answer-scan.ts'
import { Duplicates } from './gates/duplicates.ts'
import {
  FINISHED,
  FOLLOWING,
  IllegalTransition,
  IN_FLIGHT,
  isLegal,
  LINE_STATES,
  PAUSED,
  REMOTE,
  RETRYING,
  UNFUNDED,
  UNSENT,
  UNSUBMITTED,
} from './line-state.ts'
import { Run } from './run.ts'
import { BatchApiUpstream } from './senders/batch-apis/batch-api-upstream.ts'
import { Lane } from './senders/lane.ts'
import { NO_SPILL, Route } from './senders/routes.ts'

/** All lines ask the same. */
const ALIKE = { dedupe: 'all', content: () => 'the same' } as const

function batchApi(tier = 0): BatchApiUpstream {
  return new BatchApiUpstream({
    name: 'batch-api',
    api: { close: async () => {} } as BatchApi,
    concurrency_max: 4,
    modelAlias: null,
    tier,
  })
}

test('a run counts its lines by state, and refuses what the table does not allow without changing anything', async () => {
  await using world = await lineWorld({ lines: 3 })
  const { run } = world
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.nat(2), fc.nat(LINE_STATES.length - 1))), (moves) => {
      for (const [position, to] of moves) {
        const from = run.stateOf(position)
        if (isLegal(from, to)) run.move(position, to, 'a test')
        else assert.throws(() => run.move(position, to, 'a test'), IllegalTransition)
        assert.equal(run.stateOf(position), isLegal(from, to) ? to : from)
      }
      for (const state of LINE_STATES.keys()) assert.equal(run.count(state), run.positions(state).length)
    }),
  )
})

test('a line for a batch API whose earlier answer is not found is handed over, and not searched again', async () => {
  let searches = 0
  await using world = await lineWorld({
    ...{ lines: 2, ...ALIKE },
    upstreams: () => [batchApi()],
    earlier: {
      firstOf: () => 1,
      async find() {
        searches++
        return null
      },
    },
  })
  await world.start()
  const { run, lines } = world
  const begin = () => run.positions(UNSUBMITTED).filter((position) => lines.begin(run, position, 0, REMOTE))
  assert.deepEqual(begin(), [])
  await world.settled()
  assert.deepEqual([run.count(UNSUBMITTED), run.count(FOLLOWING), searches], [1, 1, 1])
  assert.deepEqual(begin(), [0])
  assert.equal(searches, 1)
})

test('of identical lines one is sent, and the others end with its answer, at no cost', async () => {
  await using world = await lineWorld({ chunks: 2, lines: 4, ...ALIKE })
  for (const run of world.runs) await world.start(run)
  assert.equal(world.server.sent.length, 1)
  assert.deepEqual(
    world.runs.map((run) => run.count(FOLLOWING)),
    [3, 4],
  )
  await world.server.inFlight[0]!.answer()
  assert.equal(world.ended.length, 8)
  assert.deepEqual(
    world.outcomes.filter(({ record }) => record.cost_usd > 0).map(({ line }) => line),
    [1],
  )
  const used = world.runs.map(({ results }) => {
    let tokens = 0
    for (const { total_tokens } of results.fresh.tallies.all) tokens += total_tokens
    return tokens
  })
  assert.deepEqual(used, [ANSWER.usage.total_tokens, 0])
})

test('a line that is cancelled in flight is not sent again by those that follow it', async () => {
  await using world = await lineWorld({ lines: 3, ...ALIKE })
  const { run, lines, server } = world
  await world.start()
  lines.cancel(run, '[1, 2]')
  lines.placeAll(run, 'lines of it were cancelled')
  assert.equal(server.sent.length, 1)
  await server.inFlight[0]!.answer()
  assert.deepEqual(world.ended, ['l2 request_cancelled', 'l1 ok', 'l3 ok'])
  assert.equal(server.sent.length, 1)
})

test('a line whose own answer was lost with its chunk is sent again, and billed', async () => {
  await using world = await lineWorld({ lines: 1, ...ALIKE })
  const { run } = world
  const again = new Run(run.claim, run.batch, run.lines, run.bytes)
  await world.start()
  await world.server.inFlight[0]!.answer()
  world.lines.close(run, false)
  await world.start(again)
  assert.equal(world.server.sent.length, 2)
  await world.server.inFlight[0]!.answer()
  assert.equal(world.outcomes.at(-1)?.record.shared_from ?? null, null)
})

test('a line that follows one for which its own lost answer is found is sent, and billed', async () => {
  const body = Buffer.from(JSON.stringify(ANSWER))
  const answer = new AnswerScanner().scan(body, '/v1/chat/completions')
  assert(answer)
  await using world = await lineWorld({
    ...{ lines: 3, ...ALIKE },
    earlier: {
      firstOf: () => 1,
      find: async (run) => ({ body, answer, cost_nanos: 1, from: (run as Run).sharedFrom(1) }),
    },
  })
  await world.start()
  await world.settled()
  assert.deepEqual(world.ended, ['l1 ok', 'l3 ok'])
  assert.deepEqual(world.run.positions(IN_FLIGHT), [1])
  await world.server.inFlight[0]!.answer()
  const { line, record } = world.outcomes.at(-1)!
  assert.deepEqual([line, record.shared_from ?? null], [2, null])
})

test('an answer that is remembered again takes its room once', async () => {
  await using world = await lineWorld({ lines: 2, dedupe: 'all' })
  const duplicates = new Duplicates(new ResponseMemory(64 * 1024 * 1024))
  const answer = new AnswerScanner().scan(Buffer.from(JSON.stringify(ANSWER)), '/v1/chat/completions')!
  const from = { request_id: 'another', custom_id_json: '"another"' }
  const remember = (position: number) =>
    duplicates.found(world.run, position, {
      body: Buffer.alloc(2 * 1024 * 1024),
      ...{ answer, cost_nanos: 0, from },
    })
  remember(0)
  for (let i = 0; i < 10; i++) remember(1)
  for (const position of [0, 1]) assert.equal(duplicates.turn(world.run, position, () => false).kind, 'share')
})

test('when the line that others follow is rejected, they fail with the same error and are not sent', async () => {
  await using world = await lineWorld({ lines: 3, ...ALIKE })
  await world.start()
  await world.server.inFlight[0]!.respond(400, { error: { message: 'no such parameter' } })
  assert.deepEqual(
    world.ended,
    ['l1', 'l2', 'l3'].map((line) => `${line} upstream_rejected`),
  )
  assert.equal(world.server.sent.length, 1)
  assert.ok(world.outcomes[2]!.record.shared_from)
})

test('a pause leaves followers behind a line in flight, and pauses all of them when that missed', async () => {
  await using world = await lineWorld({ lines: 4, ...ALIKE })
  await world.start()
  world.paused = true
  world.lines.placeAll(world.run, 'its batch is paused')
  assert.deepEqual([world.run.count(IN_FLIGHT), world.run.count(FOLLOWING)], [1, 3])
  await world.server.inFlight[0]!.respond(429, {})
  assert.equal(world.run.count(PAUSED), 4)
  await world.advance(60_000)
  assert.equal(world.server.sent.length, 1, 'nothing is sent while it is paused')
  world.paused = false
  world.lines.placeAll(world.run, 'it is resumed')
  await world.settled()
  assert.equal(world.server.sent.length, 2)
  await world.server.inFlight[0]!.answer()
  assert.equal(world.ended.length, 4)
})

test('a lowered limit takes the leader and its followers back, and each waits for the check on its own', async () => {
  await using world = await lineWorld({ lines: 4, concurrency: 1, ...ALIKE })
  world.maySend = false
  await world.start()
  const { run, lines } = world
  world.maySend = true
  lines.holdForCheck(run)
  assert.equal(run.count(UNFUNDED), 4)
  run.setAllowed(2, true)
  lines.checked(run)
  await world.settled()
  assert.deepEqual(run.positions(IN_FLIGHT), [2])
  await world.server.inFlight[0]!.answer()
  assert.deepEqual(run.positions(UNFUNDED), [0, 1, 3], 'what no check allowed shares no answer either')
  for (const position of [0, 1, 3]) run.setAllowed(position, true)
  lines.checked(run)
  await world.settled()
  assert.equal(world.ended.length, 4)
  assert.equal(world.server.sent.length, 1)
})

test('lines that wait for a check of the limits are not sent before it, whatever else changes', async () => {
  await using world = await lineWorld({ lines: 3, concurrency: 1 })
  const { run, lines } = world
  run.isLimited = true
  for (const position of run.positions()) run.setAllowed(position, true)
  await world.start()
  lines.holdForCheck(run)
  lines.placeAll(run, 'a pause has ended')
  await world.inFlight('l1').answer()
  await world.settled()
  assert.deepEqual([world.server.sent.length, run.count(UNFUNDED)], [1, 2])
})

test('no line is sent after its window has closed, though the alarm for that is late', async () => {
  await using world = await lineWorld({ lines: 2, concurrency: 1 })
  await world.start()
  world.skewMs = world.run.claim.deadline - world.clock.now()
  await world.server.inFlight[0]!.answer()
  await world.settled()
  assert.equal(world.server.sent.length, 1)
  assert.deepEqual(world.ended, ['l1 ok', 'l2 batch_expired'])
})

/** The account of a limit on the whole project. */
const PROJECT = accountOfLimit({ scope: 'project', subject: '', model: '' }, '')

test('what a line cost beyond its reservation is taken from the lines after it before any commit', async () => {
  await using world = await lineWorld({ lines: 3, concurrency: 1, content: () => 'x'.repeat(4_000) })
  const { run, funds } = world
  run.isLimited = true
  for (const position of run.positions()) {
    run.setAllowed(position, true)
    funds.setReserved(run, position, true)
  }
  funds.cap(run.claim.project_id, [{ account: PROJECT, metric: 'tokens' }])
  await world.start()
  const usage = { prompt_tokens: 4_000, completion_tokens: 2, total_tokens: 4_002 }
  await world.server.inFlight[0]!.respond(200, { ...ANSWER, usage })
  assert.equal(world.outcomes[0]?.record.usage?.total_tokens, 4_002)
  assert.deepEqual([world.server.sent.length, world.checks], [1, 1])
  assert.ok(run.count(UNFUNDED) > 0)
})

test('a check of the limits while an identical line waits for its next attempt sends none of them twice', async () => {
  await using world = await lineWorld({ lines: 3, ...ALIKE })
  await world.start()
  await world.server.inFlight[0]!.respond(500, { error: { message: 'a bug' } })
  const { run, lines } = world
  assert.deepEqual([run.count(RETRYING), run.count(FOLLOWING)], [1, 2])
  lines.holdForCheck(run)
  assert.equal(run.count(UNFUNDED), 3)
  for (const position of [0, 1, 2]) run.setAllowed(position, true)
  lines.checked(run)
  await world.advance(RETRY.backoff_max_ms)
  assert.equal(world.server.sent.length, 2)
  await world.server.inFlight[0]!.answer()
  assert.equal(world.ended.length, 3)
})

test('lines of other chunks follow no line of a chunk that is closed', async () => {
  await using world = await lineWorld({ chunks: 2, lines: 2, ...ALIKE })
  for (const run of world.runs) await world.start(run)
  const [first, second] = world.runs
  world.lines.close(first!, true)
  await world.settled()
  assert.deepEqual([second!.count(IN_FLIGHT), second!.count(FOLLOWING)], [1, 1])
  await world.server.inFlight[0]!.answer()
  assert.deepEqual(world.ended, [], 'the answer of the closed chunk is dropped')
  await world.server.inFlight[0]!.answer()
  assert.deepEqual(world.ended, ['l3 ok', 'l4 ok'])
})

test('identical lines of a model that a batch API answers are handed over once, and the others follow', async () => {
  await using world = await lineWorld({ lines: 8, ...ALIKE, upstreams: () => [batchApi()] })
  await world.start()
  const { run, lines } = world
  assert.equal(run.count(UNSUBMITTED), 8)
  const begun = run.positions(UNSUBMITTED).filter((position) => lines.begin(run, position, 0, REMOTE))
  assert.deepEqual(begun, [0])
  assert.equal(run.count(FOLLOWING), 7, 'they wait for it there too')
  assert.ok(lines.duplicates.followsOnlyItself(run))
})

test('lines of another chunk do not wait for hours for what a batch API has', async () => {
  await using world = await lineWorld({ chunks: 2, lines: 1, ...ALIKE, upstreams: () => [batchApi()] })
  for (const run of world.runs) await world.start(run)
  const [first, second] = world.runs
  assert.ok(world.lines.begin(first!, 0, 0, REMOTE))
  assert.ok(world.lines.begin(second!, 0, 0, REMOTE))
})

test('while a batch API has an identical line of another chunk, a model server gets one, not all', async () => {
  const remote = batchApi()
  await using world = await lineWorld({
    ...{ chunks: 2, lines: 3, ...ALIKE },
    upstreams: (server) => [server, remote],
  })
  world.lane.route = new Route([remote])
  const [first, second] = world.runs
  await world.start(first)
  for (const position of first!.positions(UNSUBMITTED)) world.lines.begin(first!, position, 0, REMOTE)
  world.lane.route = new Route([world.modelServer])
  await world.start(second)
  assert.deepEqual([second!.count(IN_FLIGHT), second!.count(FOLLOWING)], [1, 2])
  assert.equal(first!.count(FOLLOWING), 2, 'they wait for the batch API')
  const now = world.clock.now()
  const result = { kind: 'throttled', status: 429, reason: 'no' } as const
  world.lines.missed(first!, 0, result, 'server', { upstream: remote, at: now, now, draw: 0.5 })
  await world.advance(60_000)
  assert.deepEqual([first!.count(IN_FLIGHT), first!.count(FOLLOWING)], [0, 3], 'the batch API has left it')
  await world.inFlight('the same').answer()
  assert.equal(world.server.sent.length, 1)
  assert.equal(world.ended.length, 6)
})

test('a leader that falls over to a batch API takes no follower of another chunk along', async () => {
  const remote = batchApi()
  await using world = await lineWorld({
    chunks: 2,
    lines: 2,
    ...ALIKE,
    retry: { attempts_max: 10 },
    upstreams: (server) => [server, remote],
  })
  for (const run of world.runs) await world.start(run)
  const [first, second] = world.runs
  assert.equal(world.server.sent.length, 1)
  world.lane.route = new Route([remote])
  await world.server.inFlight[0]!.breakConnection()
  await world.advance(RETRY.backoff_max_ms)
  world.lines.modelsChanged(world.runs)
  assert.deepEqual([first!.count(UNSUBMITTED), first!.count(FOLLOWING)], [1, 1])
  assert.equal(second!.count(UNSUBMITTED), 2)
})

test('identical lines that a batch API throttles wait for one of them, and fail with it', async () => {
  const remote = batchApi()
  await using world = await lineWorld({
    ...{ lines: 3, ...ALIKE },
    retry: { throttled_attempts_max: 3 },
    upstreams: () => [remote],
  })
  const { run, lines } = world
  run.isLimited = true
  for (const position of run.positions()) run.setAllowed(position, true)
  await world.start()
  const handedOver: number[] = []
  while (run.unfinished > 0) {
    for (const position of run.positions(UNSUBMITTED))
      if (lines.begin(run, position, 0, REMOTE)) handedOver.push(position)
    const now = world.clock.now()
    for (const position of run.positions(REMOTE)) {
      run.setAllowed(position, false)
      const result = { kind: 'throttled', status: 429, reason: 'no room' } as const
      lines.missed(run, position, result, 'line', { upstream: remote, at: now, now })
    }
    for (const position of run.positions(UNFUNDED)) run.setAllowed(position, true)
    lines.checked(run)
    if (run.count(UNSUBMITTED) === 0) await world.advance(60_000)
  }
  assert.deepEqual(handedOver, [0, 0, 0])
  assert.equal(world.ended.length, 3)
})

test('a line that came back from a batch API and has to wait for a limit holds back no identical one', async () => {
  const remote = batchApi()
  await using world = await lineWorld({ lines: 2, ...ALIKE, upstreams: () => [remote] })
  const { run, lines } = world
  run.isLimited = true
  for (const position of run.positions()) run.setAllowed(position, true)
  await world.start()
  for (const position of run.positions(UNSUBMITTED)) lines.begin(run, position, 0, REMOTE)
  run.setAllowed(0, false)
  const now = world.clock.now()
  const result = { kind: 'throttled', status: 429, reason: 'no room' } as const
  lines.missed(run, 0, result, 'line', { upstream: remote, at: now, now })
  lines.checked(run)
  assert.deepEqual([run.stateOf(0), run.stateOf(1)], [UNFUNDED, UNSUBMITTED])
})

test('a line that cannot run any more when a batch API leaves it fails for that reason, and is not sent', async () => {
  const remote = batchApi()
  const queued = await queuedBatch({ chunks: 1, lines: 2 })
  // Reloaded while the batch API had them: the model serves something else.
  queued.models.set('m', { ...queued.models.get('m')!, endpoints: ['/v1/embeddings'] })
  await using world = linesIn(queued, await queued.open(), { upstreams: (server) => [server, remote] })
  const { run, lines } = world
  run.move(0, REMOTE, 'it was handed over')
  run.move(1, REMOTE, 'it was handed over')
  await world.start()
  const now = world.clock.now()
  const result = { kind: 'failed', status: null, code: 'upstream_unavailable', reason: 'expired' } as const
  lines.missed(run, 0, result, 'server', { upstream: remote, at: now, now })
  lines.place(run, 1, 'its batch API is not configured any more')
  await world.advance(60_000)
  assert.deepEqual(world.ended.sort(), ['l1 endpoint_not_supported', 'l2 endpoint_not_supported'])
  assert.deepEqual(world.server.sent, [])
})

test('lines that a batch API left wait for their backoff before a model server gets them', async () => {
  const remote = batchApi()
  await using world = await lineWorld({ lines: 2, upstreams: (server) => [server, remote] })
  world.lane.route = new Route([remote])
  await world.start()
  const { run, lines } = world
  for (const position of [0, 1]) assert.ok(lines.begin(run, position, 0, REMOTE))
  world.lane.route = new Route([world.modelServer])
  const now = world.clock.now()
  const result = { kind: 'throttled', status: 429, reason: 'slow down', retry_after_ms: 30_000 } as const
  for (const position of [0, 1])
    lines.missed(run, position, result, 'server', { upstream: remote, at: now, now, draw: 0.5 })
  assert.equal(run.count(RETRYING), 2)
  await world.advance(29_999)
  assert.deepEqual(world.server.sent, [])
  await world.advance(60_000)
  assert.deepEqual(world.server.sent, ['l1', 'l2'])
})

for (const [where, waits, taken] of [
  ['a model server', UNSENT, IN_FLIGHT],
  ['a batch API', UNSUBMITTED, REMOTE],
] as const) {
  test(`a line that is due for ${where} stays due when the clock is set back`, async () => {
    const remote = batchApi()
    const upstreams = waits === UNSENT ? {} : { upstreams: () => [remote] }
    await using world = await lineWorld({ lines: 1, ...upstreams })
    world.maySend = false
    await world.start()
    const { run, lines } = world
    const now = world.clock.now()
    const result = { kind: 'throttled', status: 429, reason: 'slow down' } as const
    run.move(0, taken, 'it is sent')
    lines.missed(run, 0, result, 'server', { upstream: remote, at: now, now })
    world.skewMs = 60_000
    lines.placeAll(run, 'the upstreams of its model have changed')
    assert.equal(run.stateOf(0), waits)
    world.skewMs = 0
    lines.placeAll(run, 'the upstreams of its model have changed')
    assert.equal(world.broken.length, 0)
    assert.equal(run.stateOf(0), waits)
  })
}

test('lines that a batch API left together are due together, however long placing them takes', async () => {
  const remote = batchApi()
  await using world = await lineWorld({ lines: 2, upstreams: () => [remote] })
  await world.start()
  const { run, lines } = world
  const now = world.clock.now()
  const result = { kind: 'throttled', status: 429, reason: 'slow down', retry_after_ms: 1_000 } as const
  for (const position of [0, 1]) assert.ok(lines.begin(run, position, 0, REMOTE))
  await world.advance(1_001)
  for (const position of [0, 1])
    lines.missed(run, position, result, 'server', { upstream: remote, at: now, now, draw: 0.5 })
  assert.equal(run.count(RETRYING), 2)
  await world.advance(0)
  assert.equal(run.count(UNSUBMITTED), 2)
})

test('a batch API that fails one call after the other rejects none of the lines that were handed over', async () => {
  const remote = batchApi()
  await using world = await lineWorld({ lines: 1, retry: { attempts_max: 10 }, upstreams: () => [remote] })
  await world.start()
  const { run, lines } = world
  const result = {
    kind: 'failed',
    status: 500,
    code: 'upstream_unavailable',
    reason: 'it answered 500: oops',
  } as const
  for (let calls = 0; calls < 4; calls++) {
    assert.equal(run.count(UNSUBMITTED), 1)
    run.move(0, REMOTE, 'it is handed over')
    const now = world.clock.now()
    lines.missed(run, 0, result, 'server', { upstream: remote, at: now, now })
    await world.advance(60_000)
    const other = remote.callFor('another batch', {}, world.clock.now())
    remote.begin(other)
    remote.took(other, world.clock.now())
  }
  assert.deepEqual(world.ended, [])
})

test('lines of a model that a reload has removed end, in whatever state they wait', async () => {
  await using world = await lineWorld({ lines: 5, concurrency: 2, ...{ retry: { attempts_max: 10 } } })
  await world.start()
  await world.server.inFlight[0]!.respond(500, { error: { message: 'a bug' } })
  const { run } = world
  assert.deepEqual([run.count(RETRYING), run.count(IN_FLIGHT), run.count(UNSENT)], [1, 1, 3])
  world.lanes.clear()
  world.lines.modelsChanged([run])
  await world.settled()
  assert.deepEqual(
    world.ended.sort(),
    ['l1', 'l3', 'l4', 'l5'].map((line) => `${line} model_not_found`),
  )
  for (const attempt of [...world.server.inFlight]) await attempt.answer()
  assert.deepEqual(world.ended.slice(4), ['l2 ok'])
})

test('a reload that removes the model of identical lines ends each of them once', async () => {
  await using world = await lineWorld({ lines: 4, ...ALIKE, retry: { attempts_max: 10 } })
  await world.start()
  await world.server.inFlight[0]!.respond(500, { error: { message: 'a bug' } })
  assert.deepEqual([world.run.count(RETRYING), world.run.count(FOLLOWING)], [1, 3])
  world.lanes.clear()
  world.lines.modelsChanged([world.run])
  await world.settled()
  assert.equal(new Set(world.ended).size, 4)
})

test('a cancelled batch ends every line that waits, whatever for, and each once', async () => {
  await using world = await lineWorld({
    lines: 6,
    concurrency: 1,
    content: (line) => (line < 4 ? 'same' : `l${line}`),
    dedupe: 'all',
  })
  await world.start()
  world.run.isLimited = true
  world.run.setAllowed(5, false)
  world.lines.place(world.run, 5, 'it waits for a limit')
  world.lines.stop(world.run, 'batch_cancelled', false)
  await world.settled()
  await world.server.inFlight[0]!.answer()
  assert.equal(new Set(world.ended).size, 6)
  assert.equal(world.run.count(FINISHED), 6)
  assert.equal(world.ended.filter((end) => end.endsWith('batch_cancelled')).length, 5)
})

test('counts of a lane follow its lines, and are nothing after its runs have ended', async () => {
  await using world = await lineWorld({ chunks: 2, lines: 5, concurrency: 2, retry: { attempts_max: 10 } })
  for (const run of world.runs) await world.start(run)
  assert.deepEqual([world.lane.unsent, world.lane.retrying], [8, 0])
  await world.server.inFlight[0]!.respond(500, { error: { message: 'a bug' } })
  assert.deepEqual([world.lane.unsent, world.lane.retrying], [8, 1])
  for (const run of world.runs) world.lines.close(run, true)
  assert.deepEqual([world.lane.unsent, world.lane.retrying, world.lane.unsubmitted], [0, 0, 0])
})

test('a line that is answered when its model is not configured any more costs what the model cost last', async () => {
  await using world = await lineWorld({ lines: 1 })
  await world.start()
  const { models, lanes, lines, run } = world
  models.set('m', { ...models.get('m')!, price: { input_picos: 2_000_000, output_picos: 2_000_000 } })
  lines.modelsChanged([run])
  lanes.delete('m')
  models.clear()
  lines.modelsChanged([run])
  await world.inFlight('l1').answer()
  assert.deepEqual(world.ended, ['l1 ok'])
  assert.equal(world.outcomes[0]?.record.cost_usd, 0.00001)
})

test('lines are sent after a model was removed and is back while a chunk of it was being parked', async () => {
  const world = await lineWorld({ chunks: 2, lines: 1, concurrency: 1 })
  const { lanes, lines } = world
  const [parked, other] = world.runs as [Run, Run]
  world.maySend = false
  await world.start(parked)
  parked.park()
  lanes.clear()
  lines.modelsChanged([parked])
  const route = new Route([world.modelServer], NO_SPILL)
  lanes.set('m', new Lane('m', route, world.clock, world.turn))
  lines.modelsChanged([parked])
  lines.close(parked, true)
  world.maySend = true
  await world.start(other)
  assert.deepEqual(world.server.sent, ['l2'])
})

test('a clock that is set back delays no line that waits for its next attempt', async () => {
  await using world = await lineWorld({ lines: 1, retry: { attempts_max: 10 } })
  await world.start()
  await world.server.inFlight[0]!.respond(500, { error: { message: 'a bug' } })
  world.skewMs = -3_600_000
  await world.advance(RETRY.backoff_max_ms)
  assert.equal(world.server.sent.length, 2)
})
