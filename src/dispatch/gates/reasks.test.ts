import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ANSWER, type ScriptedAttempt } from '../../../test/fakes/scripted-backend.ts'
import { type LineWorldOptions, lineWorld } from '../../../test/support/line-world.ts'
import { ResponseMemory } from '../../backends/response-memory.ts'
import type { Reask } from '../../domain/batch.ts'
import { IN_FLIGHT } from '../line-state.ts'

const FIT = '{"said":1}'
const MISSED = '{"missed":1}'
/** Of an answer: three tokens of its prompt, and two. */
const USD = 0.000005

async function world(reask: Partial<Reask> = {}, more: Partial<LineWorldOptions> = {}) {
  const made = await lineWorld({ lines: 1, reask: { max: 2, mode: 'repeat', ...reask }, ...more })
  await made.start()
  return made
}

/** And time for its check. */
async function answer(
  { server, advance }: Awaited<ReturnType<typeof world>>,
  content: string,
  finish_reason = 'stop',
  checkMs = 20,
): Promise<void> {
  const attempt = server.inFlight[0]
  assert.ok(attempt)
  const message = { role: 'assistant', content }
  await attempt.respond(200, { ...ANSWER, choices: [{ index: 0, message, finish_reason }] })
  await advance(checkMs)
}

function sentBody(attempt: ScriptedAttempt | undefined): string {
  assert.ok(attempt)
  return Buffer.from(attempt.call.body).toString()
}

test('an answer that misses its schema is asked for again with another seed, and each attempt is billed', async () => {
  await using here = await world()
  const first = sentBody(here.server.inFlight[0])
  await answer(here, MISSED)
  assert.equal(sentBody(here.server.inFlight[0]), `{"seed":1,${first.slice(1)}`)
  await answer(here, 'no JSON')
  assert.equal(sentBody(here.server.inFlight[0]), `{"seed":2,${first.slice(1)}`)
  await answer(here, FIT)
  const [{ code, record, result } = assert.fail()] = here.outcomes
  assert.equal(code, 'ok')
  assert.match(JSON.stringify(result), /said/)
  const reasons = record.attempts.map((one) => Object(one).reason)
  assert.deepEqual(reasons, ['not_schema', 'not_json', undefined])
  assert.equal(record.cost_usd, 0.000015)
  assert.equal(record.usage?.total_tokens, 15)
})

test('after the last attempt the answer stands, whatever it is', async () => {
  await using here = await world({ max: 1 })
  await answer(here, FIT, 'length')
  await answer(here, MISSED)
  assert.equal(here.server.inFlight.length, 0)
  assert.deepEqual(here.ended, ['l1 ok'])
  assert.match(JSON.stringify(here.outcomes[0]?.result), /missed/)
  assert.equal(here.outcomes[0]?.record.cost_usd, 2 * USD)
  const reasons = here.outcomes[0]?.record.attempts.map((one) => Object(one).reason)
  assert.deepEqual(reasons, ['cut_off', 'not_schema'], 'the batch counts it as one that still misses')
})

test('a repair sends the last answer along, and what is wrong with it', async () => {
  await using here = await world({ mode: 'repair' })
  const first = JSON.parse(sentBody(here.server.inFlight[0]))
  await answer(here, MISSED)
  await answer(here, FIT, 'length')
  const second = JSON.parse(sentBody(here.server.inFlight[0]))
  assert.deepEqual(second.messages.slice(0, 2), [...first.messages, { role: 'assistant', content: FIT }])
  assert.match(second.messages[2].content, /^The answer was cut off/)
  assert.deepEqual({ ...second, messages: first.messages }, first)
})

test('an answer stands if its line gets no other one: refused, cancelled, expired, paused or without room', async () => {
  const ways: ((here: Awaited<ReturnType<typeof world>>) => unknown)[] = [
    ({ server }) => server.inFlight[0]?.respond(400, { error: { message: 'no seed' } }),
    ({ lines, run }) => lines.stop(run, 'batch_expired', true),
    ({ lines, run }) => lines.stop(run, 'drained', true),
    ({ lines, run, server }) => {
      lines.stop(run, 'batch_cancelled', false)
      return server.inFlight[0]?.respond(500, {})
    },
    async (here) => {
      here.paused = true
      await here.server.inFlight[0]?.respond(429, {})
    },
    async ({ lines, run, server }) => {
      await server.inFlight[0]?.respond(429, {})
      lines.holdForCheck(run)
    },
    async ({ lines, run, server, lanes }) => {
      await server.inFlight[0]?.respond(429, {})
      lanes.delete('m')
      lines.modelsChanged([run])
    },
  ]
  for (const [i, way] of ways.entries()) {
    await using here = await world()
    await answer(here, MISSED)
    assert.deepEqual(here.ended, [])
    await way(here)
    await here.settled()
    assert.deepEqual(here.ended, ['l1 ok'], `way ${i}`)
    // A model that is gone has no price.
    assert.equal(here.outcomes[0]?.record.cost_usd, USD, `way ${i}`)
  }
})

test('an answer that is being checked stands when its run stops', async () => {
  for (const reason of ['batch_cancelled', 'batch_expired', 'drained'] as const) {
    await using here = await world()
    await answer(here, MISSED, 'stop', 0)
    assert.equal(here.run.count(IN_FLIGHT), 1)
    here.lines.stop(here.run, reason, true)
    await here.advance(50)
    assert.deepEqual(here.ended, ['l1 ok'])
    assert.equal(here.outcomes[0]?.record.cost_usd, USD)
    assert.equal(here.server.sent.length, 1)
  }
})

test('a line that is in flight when limits are checked is not asked again: there may be no room for another answer', async () => {
  await using here = await world()
  here.run.isLimited = true
  here.run.setAllowed(0, true)
  here.lines.holdForCheck(here.run)
  await answer(here, MISSED)
  assert.deepEqual(here.ended, ['l1 ok'])
  assert.equal(here.server.sent.length, 1)
})

test('a usage is told to be estimated if that of any answer is', async () => {
  await using here = await world({ max: 1 })
  const cut = [{ index: 0, message: { role: 'assistant', content: FIT }, finish_reason: 'length' }]
  await here.server.inFlight[0]?.respond(200, { ...ANSWER, choices: cut, usage: undefined })
  await here.settled()
  await answer(here, FIT)
  assert.equal(here.outcomes[0]?.record.usage_estimated, true)
})

test('a prompt is billed with the messages that a repair adds, and with no more', async () => {
  for (const beyond of [0, 1_000]) {
    await using here = await world({ mode: 'repair', max: 1 })
    await answer(here, MISSED)
    const { body } = here.server.inFlight[0]?.call ?? assert.fail()
    // What a chat template may write comes on top.
    const most = body.length + 4_096
    const prompt_tokens = most + beyond
    const choices = [{ index: 0, message: { role: 'assistant', content: FIT }, finish_reason: 'stop' }]
    const usage = { prompt_tokens, completion_tokens: 2, total_tokens: prompt_tokens + 2 }
    await here.server.inFlight[0]?.respond(200, { ...ANSWER, choices, usage })
    await here.advance(20)
    const cost = Math.round((here.outcomes[0]?.record.cost_usd ?? 0) * 1e9)
    // The response format counts twice.
    const format = Buffer.byteLength(JSON.stringify(JSON.parse(body.toString()).response_format))
    assert.equal(cost, 5_000 + 1_000 * (most + Math.min(beyond, format) + 2))
  }
})

/** Answers each attempt with a report of so many tokens, until the line ends; returns its record, and the attempts. */
async function reporting(
  here: Awaited<ReturnType<typeof world>>,
  tokens: readonly number[],
  content = MISSED,
) {
  for (const prompt_tokens of tokens) {
    const choices = [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }]
    const usage = { prompt_tokens, completion_tokens: 2, total_tokens: prompt_tokens + 2 }
    await here.server.inFlight[0]?.respond(200, { ...ANSWER, choices, usage })
    await here.advance(20)
  }
  const { record } = here.outcomes[0] ?? assert.fail('it has not ended')
  return { record, sent: here.server.sent.length, tokens: record.usage?.total_tokens ?? 0 }
}

test('a repair does not carry an answer that is longer than its line allows: the answer stands with its verdict', async () => {
  // Ten tokens of sixteen bytes.
  for (const [length, asked] of [
    [160, 2],
    [161, 1],
    [1_000_000, 1],
  ] as const) {
    await using here = await world({ mode: 'repair', max: 1 })
    const { record, sent } = await reporting(here, asked === 2 ? [3, 3] : [3], 'x'.repeat(length))
    assert.equal(sent, asked, `${length} bytes`)
    assert.equal(Object(record.attempts[0]).reason, 'not_json')
    assert.equal(record.cost_usd, asked * USD)
  }
  await using here = await world({ max: 1 })
  assert.equal((await reporting(here, [3, 3], 'x'.repeat(1_000_000))).sent, 2, 'another seed carries nothing')
})

test('what is reserved for a line bounds the prompts of its further attempts, whatever a server reports', async () => {
  for (const mode of ['repair', 'repeat'] as const) {
    await using here = await world({ mode, max: 5 })
    here.run.setReserved(0, true)
    const { projected } = here.run.lines[0] ?? assert.fail()
    const { tokens, record } = await reporting(here, [30, ...Array(5).fill(1_000_000)])
    assert.ok(tokens <= projected.tokens + 5 * 30, `${tokens} of ${projected.tokens}`)
    assert.ok(record.cost_usd <= (projected.cost_nanos + 5 * 30_000) / 1e9)
  }
})

test('a line that cost more than is reserved for it is not asked for again', async () => {
  await using here = await world({ max: 5 })
  here.run.setReserved(0, true)
  const { projected } = here.run.lines[0] ?? assert.fail()
  const { sent, tokens } = await reporting(here, [projected.tokens + 1])
  assert.deepEqual([sent, tokens], [1, projected.tokens + 3])
})

test('answers of lines that are asked again take a quarter of the memory of answers; beyond it they stand', async () => {
  const MIB = 1024 * 1024
  const answers = new ResponseMemory(4 * MIB)
  await using here = await world({ max: 1 }, { lines: 12, concurrency: 12, answers })
  for (const attempt of [...here.server.inFlight]) {
    const message = { role: 'assistant', content: 'x'.repeat(0.2 * MIB) }
    await attempt.respond(200, { ...ANSWER, choices: [{ index: 0, message, finish_reason: 'length' }] })
  }
  assert.deepEqual([here.ended.length, here.server.inFlight.length], [8, 4])
  assert.equal(answers.hold('kept', 0.3 * MIB), false)
  const [first] = here.outcomes
  assert.deepEqual(
    first?.record.attempts.map((one) => Object(one).reason),
    ['cut_off'],
  )
  // Whatever ends a line frees its answer.
  await here.server.inFlight[0]?.respond(400, { error: { message: 'no' } })
  here.lines.stop(here.run, 'batch_cancelled', false)
  for (const attempt of [...here.server.inFlight]) await attempt.respond(200, ANSWER)
  assert.equal(here.ended.length, 12)
  assert.equal(answers.hold('kept', MIB), true)
})

test('answers that wait for a check count as memory of answers, and the texts of few are checked at once', async () => {
  const MIB = 1024 * 1024
  const answers = new ResponseMemory(8 * MIB)
  await using here = await world({ max: 1 }, { lines: 4, answers })
  const message = { role: 'assistant', content: JSON.stringify({ said: 'x'.repeat(0.8 * MIB) }) }
  for (const attempt of [...here.server.inFlight])
    await attempt.respond(200, { ...ANSWER, choices: [{ index: 0, message, finish_reason: 'stop' }] })
  assert.equal(answers.hasRoom, false)
  await here.advance(15)
  assert.ok(here.ended.length < 4, 'all of them were checked by one call')
  await here.advance(200)
  assert.deepEqual([here.ended.length, answers.hasRoom], [4, true])
})

test('every answer costs what it did when it came, whatever a reload changes before the line ends', async () => {
  const dear = { input_picos: 100_000_000, output_picos: 100_000_000 }
  const changes: ((here: Awaited<ReturnType<typeof world>>) => unknown)[] = [
    ({ models }) => models.delete('m'),
    ({ models }) => models.set('m', { ...models.get('m')!, price: dear }),
    ({ modelServer }) => modelServer.setTerms({ concurrency_max: 8, price: dear }),
  ]
  for (const [i, change] of changes.entries()) {
    await using checked = await world({ max: 1 })
    await answer(checked, FIT, 'stop', 0)
    change(checked)
    await checked.advance(20)
    assert.deepEqual(checked.ended, ['l1 ok'])
    assert.equal(checked.outcomes[0]?.record.cost_usd, USD, `checked, change ${i}`)

    await using kept = await world({ max: 1 })
    await answer(kept, MISSED)
    change(kept)
    kept.lines.stop(kept.run, 'batch_cancelled', true)
    await kept.settled()
    assert.deepEqual(kept.ended, ['l1 ok'])
    assert.equal(kept.outcomes[0]?.record.cost_usd, USD, `kept, change ${i}`)
  }
})

test('identical lines wait for the last answer, and share it', async () => {
  await using here = await world({}, { lines: 3, dedupe: 'all', content: () => 'the same' })
  await answer(here, MISSED)
  assert.deepEqual(here.ended, [])
  await answer(here, FIT)
  assert.deepEqual(here.ended.sort(), ['l1 ok', 'l2 ok', 'l3 ok'])
  const costs = here.outcomes.map(({ record }) => record.cost_usd).sort()
  assert.deepEqual(costs, [0, 0, 2 * USD])
})

test('a line of a batch that asks for nothing again is not examined', async () => {
  await using here = await lineWorld({ lines: 1 })
  await here.start()
  await here.server.inFlight[0]?.respond(200, {
    ...ANSWER,
    choices: [{ index: 0, message: { role: 'assistant', content: MISSED }, finish_reason: 'length' }],
  })
  await here.settled()
  assert.deepEqual(here.ended, ['l1 ok'])
})
