import assert from 'node:assert/strict'
import test from 'node:test'
import { Check } from 'typebox/schema'
import { testClock } from '../../../test/fakes/clock.ts'
import { sendTo } from '../../../test/fakes/scripted-backend.ts'
import type { SimOptions } from '../../domain/simulated-server.ts'
import type { BackendResult } from '../backend.ts'
import { simBackend } from './sim-backend.ts'

const messages = [{ role: 'user', content: 'What is the weather in Oslo and in Bergen?' }]
const storeFaults = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a place',
    parameters: {
      type: 'object',
      properties: { place: { type: 'string' }, days: { type: 'integer', minimum: 1, maximum: 7 } },
      required: ['place', 'days'],
      additionalProperties: false,
    },
  },
}
const clockTool = { type: 'function', function: { name: 'get_time' } }

function send(request: object, options: SimOptions = {}): Promise<BackendResult> {
  const backend = simBackend({ name: 'sim', ...options })
  return sendTo(backend, {
    endpoint: '/v1/chat/completions',
    project_id: 'p',
    body: Buffer.from(JSON.stringify({ model: 'sim-1', messages, ...request })),
  })
}

interface Answer {
  choices: {
    index: number
    finish_reason: string
    message: {
      role: string
      content: string | null
      tool_calls?: { id: string; type: string; function: { name: string; arguments: string } }[]
    }
  }[]
  usage: { prompt_tokens: number; completion_tokens: number; total_tokens: number }
  model: string
  system_fingerprint: string
  object: string
  created: number
}

async function answer(request: object, options: SimOptions = {}): Promise<Answer> {
  const result = await send(request, options)
  assert.ok(result.kind === 'answered', JSON.stringify(result))
  return JSON.parse(result.body.toString())
}

async function apiError(request: object, options: SimOptions = {}): Promise<string> {
  const result = await send(request, options)
  assert.ok(result.kind === 'refused', JSON.stringify(result))
  return result.message
}

test('an answer has the form of a chat completion and says that it is simulated', async () => {
  const { choices, usage, model, system_fingerprint, object, created } = await answer({})
  assert.deepEqual([model, object, system_fingerprint], ['sim-1', 'chat.completion', 'offpeak-sim'])
  assert.ok(Number.isInteger(created))
  assert.equal(choices.length, 1)
  assert.equal(choices[0]?.finish_reason, 'stop')
  assert.equal(choices[0]?.message.role, 'assistant')
  assert.match(choices[0]?.message.content ?? '', /^Simulated answer [0-9a-f]{12}: no model ran\. \w+/)
  assert.equal(usage.completion_tokens, choices[0]?.message.content?.split(' ').length)
  assert.ok(usage.prompt_tokens > 10 && usage.prompt_tokens < 40)
})

test('a longer prompt counts more tokens, wherever its text stands', async () => {
  const tokens = async (request: object) => (await answer(request)).usage.prompt_tokens
  const short = await tokens({})
  const long = 'word '.repeat(400)
  assert.ok((await tokens({ messages: [{ role: 'user', content: long }] })) >= 500)
  assert.ok((await tokens({ messages: [{ role: 'user', content: [{ type: 'text', text: long }] }] })) >= 500)
  assert.ok((await tokens({ tools: [storeFaults], tool_choice: 'none' })) > short + 20)
})

test('max_tokens cuts the answer and says so; max_completion_tokens comes first', async () => {
  for (const limit of [1, 3, 7, 12]) {
    const { choices, usage } = await answer({ max_tokens: limit })
    assert.equal(choices[0]?.finish_reason, 'length')
    assert.equal(choices[0]?.message.content?.split(' ').length, limit)
    assert.equal(usage.completion_tokens, limit)
  }
  const both = await answer({ max_tokens: 9, max_completion_tokens: 4 })
  assert.equal(both.usage.completion_tokens, 4)
  assert.equal((await answer({ max_tokens: 10_000 })).choices[0]?.finish_reason, 'stop')
})

test('n choices are told apart and counted together', async () => {
  const { choices, usage } = await answer({ n: 3, max_tokens: 10 })
  assert.deepEqual(
    choices.map(({ index }) => index),
    [0, 1, 2],
  )
  assert.equal(new Set(choices.map(({ message }) => message.content)).size, 3)
  assert.equal(usage.completion_tokens, 30)
})

test('a tool that is offered is called with arguments its schema accepts', async () => {
  const { choices } = await answer({ tools: [storeFaults] })
  assert.equal(choices[0]?.finish_reason, 'tool_calls')
  assert.equal(choices[0]?.message.content, null)
  const [call] = choices[0]?.message.tool_calls ?? []
  assert.ok(call !== undefined)
  assert.equal(call.type, 'function')
  assert.match(call.id, /^call_sim_/)
  assert.equal(call.function.name, 'get_weather')
  const given: unknown = JSON.parse(call.function.arguments)
  assert.ok(Check(storeFaults.function.parameters, given), call.function.arguments)
})

test('tool_choice names the tool, or forbids any', async () => {
  const named = { type: 'function', function: { name: 'get_time' } }
  const called = await answer({ tools: [storeFaults, clockTool], tool_choice: named })
  assert.deepEqual(called.choices[0]?.message.tool_calls?.[0]?.function, {
    name: 'get_time',
    arguments: '{}',
  })
  const text = await answer({ tools: [storeFaults], tool_choice: 'none' })
  assert.equal(text.choices[0]?.message.tool_calls, undefined)
  const unknown = { type: 'function', function: { name: 'x' } }
  assert.match(await apiError({ tools: [storeFaults], tool_choice: unknown }), /not offered/)
})

test('after a tool has answered comes text', async () => {
  const round = [
    ...messages,
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: 'c', type: 'function', function: { name: 'get_weather', arguments: '{}' } }],
    },
    { role: 'tool', tool_call_id: 'c', content: '{"rain":true}' },
  ]
  const { choices } = await answer({ messages: round, tools: [storeFaults] })
  assert.equal(choices[0]?.finish_reason, 'stop')
  assert.match(choices[0]?.message.content ?? '', /^Simulated/)
})

test('a JSON schema is answered with an instance of it, any JSON object with one that says what it is', async () => {
  const schema = storeFaults.function.parameters
  const format = { type: 'json_schema', json_schema: { name: 'w', strict: true, schema } }
  const structured = await answer({ response_format: format })
  const instance: unknown = JSON.parse(structured.choices[0]?.message.content ?? '')
  assert.ok(Check(schema, instance))
  const loose = await answer({ response_format: { type: 'json_object' } })
  assert.equal(JSON.parse(loose.choices[0]?.message.content ?? '').simulated, true)
})

test('an instance that max_tokens has no room for is cut off, as a model would be', async () => {
  const schema = {
    type: 'object',
    properties: { text: { type: 'string', minLength: 400 } },
    required: ['text'],
  }
  const format = { type: 'json_schema', json_schema: { name: 'w', schema } }
  const { choices, usage } = await answer({ response_format: format, max_tokens: 10 })
  assert.equal(choices[0]?.finish_reason, 'length')
  assert.equal(usage.completion_tokens, 10)
  assert.throws(() => JSON.parse(choices[0]?.message.content ?? ''), SyntaxError)
})

test('what no server would do is refused', async () => {
  const impossible = { type: 'json_schema', json_schema: { schema: { enum: [] } } }
  const cases: [request: object, message: RegExp][] = [
    [{ model: '' }, /model/],
    [{ messages: [] }, /messages/],
    [{ messages: ['hi'] }, /messages\[0\]/],
    [{ messages: 'hi' }, /messages/],
    [{ stream: true }, /stream/],
    [{ max_tokens: 0 }, /max_tokens/],
    [{ max_tokens: '5' }, /max_tokens/],
    [{ n: 1000 }, /n must be at most/],
    [{ tools: [{}] }, /tools\[0\]/],
    [{ response_format: { type: 'xml' } }, /response_format/],
    [{ response_format: impossible }, /no value that fits/],
  ]
  for (const [request, message] of cases) assert.match(await apiError(request), message)
})

test('the context window counts input and output together', async () => {
  const { usage } = await answer({ max_tokens: 10 })
  const window = usage.prompt_tokens + 10
  assert.equal((await send({ max_tokens: 10 }, { context_window: window })).kind, 'answered')
  const result = await send({ max_tokens: 11 }, { context_window: window })
  assert.ok(result.kind === 'refused' && result.code === 'context_length_exceeded')
})

test('the answer comes when its latency has passed, not before', async () => {
  const clock = testClock()
  const backend = simBackend({ name: 'sim', latency_ms: 200, clock })
  let settled = false
  const sending = sendTo(backend, {
    endpoint: '/v1/chat/completions',
    project_id: 'p',
    body: Buffer.from(JSON.stringify({ model: 'm', messages })),
  })
  sending.finally(() => {
    settled = true
  })
  await clock.advance(199)
  assert.equal(settled, false)
  await clock.advance(1)
  assert.equal((await sending).kind, 'answered')
  assert.equal(clock.waiting, 0)
})

test('latencies spread over their range, each request always the same', async () => {
  const latency = async (i: number) => {
    const clock = testClock()
    const backend = simBackend({ name: 'sim', latency_ms: { min: 100, max: 300 }, clock })
    const started = clock.now()
    let ended = 0
    const sending = sendTo(backend, {
      endpoint: '/v1/chat/completions',
      project_id: 'p',
      body: Buffer.from(JSON.stringify({ model: 'm', messages, seed: i })),
    }).finally(() => {
      ended = clock.now()
    })
    await clock.advance(1000)
    await sending
    return ended - started
  }
  const first = []
  for (let i = 0; i < 40; i++) first.push(await latency(i))
  assert.ok(Math.min(...first) >= 100 && Math.max(...first) <= 300)
  assert.ok(Math.min(...first) < 150 && Math.max(...first) > 250)
  assert.equal(await latency(7), first[7])
})

test('an abort leaves no timer behind', async () => {
  const clock = testClock()
  const backend = simBackend({ name: 'sim', faults: { hang: 1 }, clock })
  const abort = new AbortController()
  const sending = sendTo(backend, {
    endpoint: '/v1/chat/completions',
    project_id: 'p',
    body: Buffer.from('{}'),
    signal: abort.signal,
  })
  assert.equal(clock.waiting, 1)
  abort.abort()
  await sending
  assert.equal(clock.waiting, 0)
})

test('options that make no sense are refused by name', () => {
  const cases: [SimOptions, RegExp][] = [
    [{ faults: { hang: 2 } }, /faults\.hang/],
    [{ faults: { hang: 0.6, reset: 0.6 } }, /add up/],
    [{ latency_ms: { min: 5, max: 1 } }, /latency_ms/],
    [{ latency_ms: Number.NaN }, /latency_ms/],
    [{ capacity: 0 }, /capacity/],
  ]
  for (const [options, message] of cases) {
    assert.throws(
      () => simBackend({ name: 'sim', ...options }),
      (error) => error instanceof RangeError && message.test(error.message),
    )
  }
  simBackend({
    name: 'sim',
    faults: { 429: 0.1, 500: 0.1, 503: 0.1, hang: 0.1, reset: 0.2, garbage: 0.2, missing_usage: 0.2 },
  })
})
