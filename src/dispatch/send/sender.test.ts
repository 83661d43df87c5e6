import assert from 'node:assert/strict'
import { test } from 'node:test'
import { scriptedBackend } from '../../../test/fakes/scripted-backend.ts'
import { queuedBatch, RETRY, SILENT } from '../../../test/support/queued-batch.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Outcome } from '../../results/outcome.ts'
import { Sender } from './sender.ts'
import { Upstream } from './upstream.ts'

test('lines are sent up to the concurrency of the upstream, and the next one when a line has ended', async () => {
  await using world = await makeWorld({ lines: 3, concurrency: 2 })
  world.sender.start(world.chunk)
  assert.deepEqual(world.server.sent, ['l1', 'l2'])
  await world.server.inFlight[0]?.answer()
  assert.deepEqual(world.server.sent, ['l1', 'l2', 'l3'])
  assert.deepEqual(world.ended, ['l1 ok'])
  assert.equal(world.chunk.inFlight, 2)
})

test('an answered line ends with its usage and its cost', async () => {
  await using world = await makeWorld({ lines: 1 })
  world.sender.start(world.chunk)
  await world.server.inFlight[0]?.answer()
  const [outcome] = world.outcomes
  assert.equal(outcome?.usage?.total_tokens, 5)
  assert.equal(outcome?.cost_nanos, 5_000)
})

test('a line whose attempt failed is sent again after the backoff, until its attempts are exhausted', async () => {
  await using world = await makeWorld({ lines: 2 })
  world.sender.start(world.chunk)
  // The other line is answered, so the server is not to blame.
  await world.server.inFlight[1]?.answer()
  for (let attempt = 1; attempt < RETRY.attempts_max; attempt++) {
    await world.server.inFlight[0]?.respond(500, { error: { message: 'a bug' } })
    assert.equal(world.server.inFlight.length, 0, 'the line waits')
    await world.clock.advance(RETRY.backoff_max_ms)
  }
  await world.server.inFlight[0]?.respond(500, { error: { message: 'a bug' } })
  assert.deepEqual(world.ended, ['l2 ok', 'l1 upstream_unavailable'])
  assert.match(world.outcomes[1]?.message ?? '', /after 3 attempts/)
  assert.equal(world.outcomes[1]?.cost_nanos, 0)
})

test('the same error three times, while other lines are answered, is a rejection in the words of the server', async () => {
  await using world = await makeWorld({ lines: 4, attempts: 10 })
  world.sender.start(world.chunk)
  for (let attempt = 1; attempt <= 3; attempt++) {
    await world.inFlight('l1').respond(500, { error: { message: 'bad grammar, id 17' } })
    await world.clock.advance(RETRY.backoff_max_ms)
    await world.inFlight(`l${attempt + 1}`).answer()
  }
  assert.deepEqual(world.ended, ['l2 ok', 'l3 ok', 'l1 upstream_rejected', 'l4 ok'])
  assert.match(world.outcomes[2]?.message ?? '', /3 times with the same error.*"500: bad grammar, id 17"/)
})

test('an error that a line got before it was answered is no rejection', async () => {
  await using world = await makeWorld({ lines: 5, attempts: 10 })
  const fail = async (content: string): Promise<void> => {
    await world.inFlight(content).respond(500, { error: { message: 'CUDA out of memory' } })
    await world.clock.advance(RETRY.backoff_max_ms)
  }
  world.sender.start(world.chunk)
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
  await using world = await makeWorld({ lines: 1 })
  world.sender.start(world.chunk)
  await world.server.inFlight[0]?.respond(400, { error: { message: 'no such parameter' } })
  assert.deepEqual(world.ended, ['l1 upstream_rejected'])
  await world.clock.advance(3_600_000)
  assert.deepEqual(world.server.sent, ['l1'])
})

test('no line is sent while sending is not allowed', async () => {
  await using world = await makeWorld({ lines: 1 })
  world.maySend = false
  world.sender.start(world.chunk)
  assert.deepEqual(world.server.sent, [])
  world.maySend = true
  world.sender.pump()
  assert.deepEqual(world.server.sent, ['l1'])
})

test('a line that the reserved funds do not cover waits with its chunk until it is resumed', async () => {
  await using world = await makeWorld({ lines: 2 })
  world.covered = (position) => position === 0
  world.sender.start(world.chunk)
  assert.deepEqual(world.server.sent, ['l1'])
  assert.deepEqual([...world.chunk.waiting], [1])
  assert.equal(world.insufficient, 1)
  world.covered = () => true
  world.chunk.waiting.delete(1)
  world.sender.resume(world.chunk, [1], [])
  assert.deepEqual(world.server.sent, ['l1', 'l2'])
})

test('lines in flight of a cancelled batch may finish, and its unsent lines end', async () => {
  await using world = await makeWorld({ lines: 3, concurrency: 1 })
  world.sender.start(world.chunk)
  world.sender.stop(world.chunk, 'batch_cancelled', false)
  assert.deepEqual([world.ended, world.idle], [[], 0])
  await world.server.inFlight[0]?.answer()
  assert.deepEqual(world.ended, ['l1 ok', 'l2 batch_cancelled', 'l3 batch_cancelled'])
  assert.deepEqual([world.server.sent, world.idle], [['l1'], 1])
})

test('the deadline aborts lines in flight, and all lines end as expired', async () => {
  await using world = await makeWorld({ lines: 2, concurrency: 1 })
  world.sender.start(world.chunk)
  world.sender.stop(world.chunk, 'batch_expired', true)
  await world.until(() => world.idle === 1)
  assert.deepEqual(world.ended, ['l1 batch_expired', 'l2 batch_expired'])
  assert.ok(world.outcomes.every(({ expired }) => expired))
})

test('no line of a lost chunk ends here: another worker has it', async () => {
  await using world = await makeWorld({ lines: 2, concurrency: 1 })
  world.sender.start(world.chunk)
  world.sender.stop(world.chunk, 'lost', false)
  await world.server.inFlight[0]?.answer()
  assert.deepEqual([world.ended, world.idle], [[], 1])
})

/** A sender with one open chunk and one upstream. */
async function makeWorld({
  lines,
  concurrency = 8,
  attempts = RETRY.attempts_max,
}: {
  lines: number
  concurrency?: number
  attempts?: number
}) {
  const queued = await queuedBatch({ chunks: 1, lines })
  const { clock, models } = queued
  const [chunk] = await queued.open()
  const server = scriptedBackend()
  const world = {
    ...queued,
    chunk: chunk as OpenChunk,
    server,
    outcomes: [] as Outcome[],
    /** The content and the code of each line that ended. */
    get ended(): string[] {
      return this.outcomes.map(({ line, code }) => `l${line} ${code}`)
    },
    inFlight: (content: string) => server.inFlight.find((one) => one.content === content)!,
    idle: 0,
    insufficient: 0,
    maySend: true,
    covered: (_position: number): boolean => true,
  }
  const upstream = new Upstream({
    backend: server.backend,
    concurrency_max: concurrency,
    modelAlias: null,
  })
  const sender = new Sender({
    clock,
    random: () => 0.5,
    log: SILENT,
    models,
    upstreams: new Map([['m', [upstream]]]),
    retry: { ...RETRY, attempts_max: attempts },
    maySend: () => world.maySend,
    onBegun() {},
    funds: { draw: (_, position) => world.covered(position), reserve() {} },
    onInsufficientFunds: () => world.insufficient++,
    onOutcome(of, outcome) {
      of.finish(outcome)
      world.outcomes.push(outcome)
    },
    onIdle: () => world.idle++,
  })
  return Object.assign(world, { sender })
}
