import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ANSWER } from '../../../test/fakes/scripted-backend.ts'
import { type EndedLine, lineWorld } from '../../../test/support/line-world.ts'
import { RETRY } from '../../../test/support/queued-batch.ts'
import { type Backend, settle } from '../../backends/backend.ts'
import { ModelServer } from '../../servers/upstream.ts'
import { FINISHED, IN_FLIGHT, UNFUNDED } from '../line-state.ts'

test('while answers cannot be stored, no line is sent: what waits for the stores is lost with the lease', async () => {
  await using world = await lineWorld({ lines: 3, concurrency: 1 })
  await world.start()
  world.failingSince = world.clock.now()
  await world.server.inFlight[0]?.answer()
  assert.deepEqual([world.server.sent, world.ended], [['l1'], ['l1 ok']])
  world.failingSince = null
  world.turn.schedule()
  await world.settled()
  assert.deepEqual(world.server.sent, ['l1', 'l2'])
})

test('lines are sent up to the concurrency of the upstream, and the next one when a line has ended', async () => {
  await using world = await lineWorld({ lines: 3, concurrency: 2 })
  await world.start()
  assert.deepEqual(world.server.sent, ['l1', 'l2'])
  await world.server.inFlight[0]?.answer()
  assert.deepEqual(world.server.sent, ['l1', 'l2', 'l3'])
  assert.deepEqual(world.ended, ['l1 ok'])
  assert.equal(world.run.count(IN_FLIGHT), 2)
})

test('an answered line ends with its usage and its cost', async () => {
  await using world = await lineWorld({ lines: 1 })
  await world.start()
  await world.server.inFlight[0]?.answer()
  const [{ record }] = world.outcomes as [EndedLine]
  assert.equal(record.usage?.total_tokens, 5)
  assert.equal(record.cost_usd, 0.000005)
})

test('a line whose attempt failed is sent again after the backoff, until its attempts are exhausted', async () => {
  await using world = await lineWorld({ lines: 2 })
  await world.start()
  // The other line is answered, so the server is not to blame.
  await world.server.inFlight[1]?.answer()
  for (let attempt = 1; attempt < RETRY.attempts_max; attempt++) {
    await world.server.inFlight[0]?.respond(500, { error: { message: 'a bug' } })
    assert.equal(world.server.inFlight.length, 0, 'the line waits')
    await world.advance(RETRY.backoff_max_ms)
  }
  await world.server.inFlight[0]?.respond(500, { error: { message: 'a bug' } })
  assert.deepEqual(world.ended, ['l2 ok', 'l1 upstream_unavailable'])
  const { result, record } = world.outcomes[1] as EndedLine
  assert.match(result.error?.message ?? '', /after 3 attempts/)
  assert.deepEqual([record.attempts.length, record.cost_usd], [3, 0])
})

test('a line that crashes its server each time ends, and does not take along the lines in flight with it', async () => {
  await using world = await lineWorld({ lines: 20, concurrency: 16, retry: { outage_patience_ms: 0 } })
  await world.start()
  const { server } = world
  while (world.ended.length < 20) {
    const crashes = server.inFlight.some(({ content }) => content === 'l1')
    for (const one of [...server.inFlight]) await (crashes ? one.breakConnection() : one.answer())
    await world.advance(RETRY.backoff_max_ms)
  }
  const failed = world.outcomes.filter(({ code }) => code !== 'ok')
  assert.deepEqual(
    failed.map(({ line, code }) => [line, code]),
    [[1, 'upstream_unavailable']],
  )
})

test('the same error three times, while other lines are answered, is a rejection in the words of the server', async () => {
  await using world = await lineWorld({ lines: 4, retry: { attempts_max: 10 } })
  await world.start()
  for (let attempt = 1; attempt <= 3; attempt++) {
    await world.inFlight('l1').respond(500, { error: { message: 'bad grammar, id 17' } })
    await world.advance(RETRY.backoff_max_ms)
    await world.inFlight(`l${attempt + 1}`).answer()
  }
  assert.deepEqual(world.ended, ['l2 ok', 'l3 ok', 'l1 upstream_rejected', 'l4 ok'])
  assert.match(
    world.outcomes[2]?.result.error?.message ?? '',
    /3 times with the same error.*"500: bad grammar, id 17"/,
  )
})

test('an error that a line got before it was answered is no rejection', async () => {
  await using world = await lineWorld({ lines: 5, retry: { attempts_max: 10 } })
  const fail = async (content: string): Promise<void> => {
    await world.inFlight(content).respond(500, { error: { message: 'CUDA out of memory' } })
    await world.advance(RETRY.backoff_max_ms)
  }
  await world.start()
  await fail('l2')
  await world.inFlight('l3').answer()
  await world.inFlight('l2').answer()
  for (const other of ['l4', 'l5', 'l1']) {
    await fail('l1')
    await world.inFlight(other).answer()
  }
  assert.deepEqual(world.ended, ['l3 ok', 'l2 ok', 'l4 ok', 'l5 ok', 'l1 ok'])
})

test('a line that the server rejects is not sent again', async () => {
  await using world = await lineWorld({ lines: 1 })
  await world.start()
  await world.server.inFlight[0]?.respond(400, { error: { message: 'no such parameter' } })
  assert.deepEqual(world.ended, ['l1 upstream_rejected'])
  await world.advance(3_600_000)
  assert.deepEqual(world.server.sent, ['l1'])
})

test('no line is sent while sending is not allowed', async () => {
  await using world = await lineWorld({ lines: 1 })
  world.maySend = false
  await world.start()
  assert.deepEqual(world.server.sent, [])
  world.maySend = true
  world.turn.schedule()
  await world.settled()
  assert.deepEqual(world.server.sent, ['l1'])
})

test('a line that the reserved funds do not cover waits for a check of the limits', async () => {
  await using world = await lineWorld({ lines: 2, concurrency: 1 })
  const { run, funds } = world
  run.isLimited = true
  run.capped = [{ account: run.accountsOf(0)[0]!, metric: 'tokens' }]
  funds.open(run)
  for (const position of [0, 1]) {
    run.setAllowed(position, true)
    funds.setReserved(run, position, true)
  }
  await world.start()
  assert.equal(world.checks, 0)
  const usage = { prompt_tokens: 1_000, completion_tokens: 2, total_tokens: 1_002 }
  await world.server.inFlight[0]?.respond(200, { ...ANSWER, usage })
  assert.deepEqual([world.ended, world.server.sent], [['l1 ok'], ['l1']])
  assert.deepEqual(run.positions(UNFUNDED), [1])
  assert.equal(world.checks, 1)
})

test('lines in flight of a cancelled batch may finish, and its unsent lines end at once', async () => {
  await using world = await lineWorld({ lines: 3, concurrency: 1 })
  await world.start()
  world.lines.stop(world.run, 'batch_cancelled', false)
  await world.settled()
  assert.deepEqual(world.ended, ['l2 batch_cancelled', 'l3 batch_cancelled'])
  await world.server.inFlight[0]?.answer()
  assert.deepEqual(world.ended.at(-1), 'l1 ok')
  assert.deepEqual(world.server.sent, ['l1'])
})

test('the deadline aborts lines in flight, and all lines end as expired', async () => {
  await using world = await lineWorld({ lines: 2, concurrency: 1 })
  await world.start()
  world.lines.stop(world.run, 'batch_expired', true)
  await world.until(() => world.outcomes.length === 2)
  assert.deepEqual(world.ended.sort(), ['l1 batch_expired', 'l2 batch_expired'])
  assert.equal(world.run.results.fresh.expired_lines, 2)
})

test('no line of a lost chunk ends here: another worker has it', async () => {
  await using world = await lineWorld({ lines: 2, concurrency: 1 })
  await world.start()
  world.lines.stop(world.run, 'lost', true)
  await world.settled()
  assert.deepEqual(world.ended, [])
  assert.ok(world.run.isIdle)
})

test('an answer that comes after its chunk was closed is dropped', async () => {
  await using world = await lineWorld({ lines: 1 })
  await world.start()
  world.lines.close(world.run, false)
  await world.server.inFlight[0]?.answer()
  assert.deepEqual([world.ended, world.broken], [[], []])
  assert.equal(world.modelServer.limit.inFlight, 0)
})

test('an exception in a backend fails the attempt, and only the log has its text', async () => {
  const overflow = (depth: number): number => overflow(depth + 1) + 1
  const rejecting =
    (attempt: () => Promise<never>): Backend['send'] =>
    (_, done) =>
      settle(attempt(), done)
  const throwing = [
    rejecting(() => Promise.reject(new Error('text of a body'))),
    () => {
      throw new TypeError('text of a body')
    },
    rejecting(async () => {
      overflow(0)
      return assert.fail('it overflows')
    }),
  ]
  for (const send of throwing) {
    const backend = { name: 'server', send, close: async () => {} }
    const upstreams = () => [new ModelServer({ backend, concurrency_max: 1, modelAlias: null })]
    await using world = await lineWorld({ lines: 1, upstreams, retry: { attempts_max: 1 } })
    await world.start()
    assert.deepEqual(world.ended, ['l1 internal_error'])
    assert.doesNotMatch(JSON.stringify(world.outcomes), /text of a body/)
    assert.equal(world.logged.filter(({ text }) => text.includes('internal error')).length, 1)
  }
})

test('a mistake about the state of a line gives its chunk up, and nothing else', async () => {
  await using world = await lineWorld({ chunks: 2, lines: 1 })
  for (const run of world.runs) await world.start(run)
  const [broken] = world.runs
  broken!.move(0, FINISHED, 'a mistake of this test: the line is in flight')
  await world.inFlight('l1').answer()
  await world.inFlight('l2').answer()
  assert.deepEqual(
    world.broken.map(({ claim }) => claim.idx),
    [0],
  )
  assert.equal(world.ended.at(-1), 'l2 ok')
})
