// Answers that miss the JSON Schema of their request, or are cut by length, are asked for again.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { send, testUpstream } from '../fakes/upstream.ts'
import { configFor, TestService, type WireBatch } from '../service.ts'

const SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer' } },
  required: ['name', 'age'],
  additionalProperties: false,
}
const FORMAT = {
  type: 'json_schema',
  json_schema: { name: 'person', strict: true, schema: SCHEMA },
}
const LINES = 1_000
const PRICES = '{input_per_mtok: 0.10, output_per_mtok: 0.40}'

interface Reasking extends WireBatch {
  reask?: { max: number; mode: string }
  reask_counts?: { asked: number; missed: number }
}

interface Usage {
  prompt_tokens: number
  completion_tokens: number
  cost_usd: number
}

interface Record {
  attempts: { status: number; reason?: string }[]
}

function personLine(content: string) {
  const body = {
    model: 'm',
    messages: [{ role: 'user', content }],
    response_format: FORMAT,
    max_tokens: 400,
  }
  return { custom_id: content, method: 'POST', url: '/v1/chat/completions', body }
}

const lines = (count: number, name = 'Person') =>
  Array.from({ length: count }, (_, i) => personLine(`${name} ${i}`))

/** As a table of results says it. */
async function notSchema(service: TestService, batch: WireBatch): Promise<number> {
  const csv = await service.request('GET', `/v1/batches/${batch.id}/results?format=csv`)
  return (await csv.text()).split('not_schema').length - 1
}

test('of 1,000 lines of which a fifth misses the schema, fewer than 15 still do', async () => {
  await using service = await TestService.start(`
models:
  - id: m
    price: ${PRICES}
    upstreams: [{type: sim, concurrency_max: 64, faults: {off_schema: 0.2}}]
worker: {flush_interval: 20ms, lease: 2s}`)
  // The simulator deals its faults by the bytes of a request and by how often it has met them.
  const plain = await service.run(lines(LINES, 'Person'))
  const missed = await notSchema(service, plain)
  assert.ok(missed > 150 && missed < 250, `${missed} of them miss it without`)
  const reask = { max: 2, mode: 'repeat' }
  const batch = (await service.run(lines(LINES, 'Someone'), { reask })) as Reasking
  assert.deepEqual([batch.reask, batch.request_counts.completed], [reask, LINES])
  const still = await notSchema(service, batch)
  assert.ok(still < 15, `${still} still miss it`)

  let nanos = 0
  const again: string[] = []
  for (const { id, response } of await service.lines(batch.output_file_id)) {
    const { usage } = response!.body as unknown as { usage: Usage }
    nanos += Math.round(usage.cost_usd * 1e9)
    const own = usage.prompt_tokens * 100 + usage.completion_tokens * 400
    if (Math.round(usage.cost_usd * 1e9) > own) again.push(id)
  }
  assert.ok(again.length > 150 && again.length < 250, `${again.length} were asked again`)
  assert.deepEqual(batch.reask_counts, { asked: again.length, missed: still })
  const { usage, cost_usd } = batch as unknown as {
    usage: { input_tokens: number; output_tokens: number }
    cost_usd: number
  }
  assert.equal(Math.round(cost_usd * 1e9), nanos)
  assert.equal(nanos, usage.input_tokens * 100 + usage.output_tokens * 400)
  for (const id of again.slice(0, 30)) {
    const record = await service.json<Record>('GET', `/v1/requests/${id}`)
    const { attempts } = record
    assert.ok(attempts.length > 1 && attempts.length <= 1 + reask.max)
    assert.ok(attempts.slice(0, -1).every(({ status, reason }) => status === 200 && reason === 'not_schema'))
    assert.ok([undefined, 'not_schema'].includes(attempts.at(-1)?.reason))
  }
})

test('a repair tells the model what is wrong, and a line that is cut is asked again', async () => {
  await using upstream = await testUpstream(({ body, response }) => {
    const { messages } = body
    const isFirst = messages.length === 1
    const isCut = messages[0]?.content === 'Person 1'
    const content = isFirst ? '{"name":"Ada","age":"36"}' : '{"name":"Ada","age":36}'
    const choice = {
      index: 0,
      message: { role: 'assistant', content },
      finish_reason: isFirst && isCut ? 'length' : 'stop',
    }
    const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }
    send(response, 200, JSON.stringify({ id: 'c', object: 'chat.completion', choices: [choice], usage }))
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run(lines(2), { reask: { max: 1, mode: 'repair' } })
  assert.equal(await notSchema(service, batch), 0)
  const faults = upstream.calls
    .filter(({ body }) => body.messages.length > 1)
    .map(({ body }) => body.messages.slice(1).map(({ role, content }) => `${role}: ${content}`))
    .sort()
  assert.equal(faults.length, 2)
  assert.match(String(faults), /assistant: \{"name":"Ada","age":"36"\},user: .*JSON Schema.*age.*integer/)
  assert.match(String(faults), /user: The answer was cut off/)
  assert.equal(batch.cost_usd, 0.000012)
})

test('an answer that is too large to be parsed meanwhile stands', async () => {
  const large = 'x'.repeat(4 * 1024 * 1024)
  await using upstream = await testUpstream(({ body, response }) => {
    const content = body.messages[0]?.content === 'Person 0' ? large : 'no JSON'
    const choice = { index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }
    const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }
    send(response, 200, JSON.stringify({ id: 'c', object: 'chat.completion', choices: [choice], usage }))
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  await service.run(lines(2), { reask: { max: 1, mode: 'repeat' } })
  const asked = upstream.calls.map(({ body }) => body.messages[0]?.content)
  assert.deepEqual(asked.sort(), ['Person 0', 'Person 1', 'Person 1'])
})

test('what all attempts may cost is projected, and a batch without room for them is refused', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(
    lines(10)
      .map((one) => JSON.stringify(one))
      .join('\n'),
  )
  const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const cost = async (reask?: object) => {
    const body = { ...order, ...(reask && { reask }) }
    return (await service.json<{ cost_usd: number }>('POST', '/v1/batches?dry_run=true', body)).cost_usd
  }
  const once = await cost()
  const again = await cost({ max: 2, mode: 'repeat' })
  assert.ok(Math.abs(again - 3 * once) < 1e-9)
  assert.ok((await cost({ max: 2, mode: 'repair' })) > again)
  const limit = { scope: 'project', metric: 'cost_usd', amount: 2 * once, window: 'day', action: 'block' }
  await service.json('POST', '/v1/limits', limit)
  const refused = await service.request(
    'POST',
    '/v1/batches',
    JSON.stringify({ ...order, reask: { max: 2, mode: 'repeat' } }),
    { 'content-type': 'application/json' },
  )
  assert.equal(refused.status, 429)
  await service.json('POST', '/v1/batches', { ...order, reask: { max: 1, mode: 'repeat' } })
})

/** Cost at USD 1,000 per million tokens; every answer misses its schema, and each further one is reported to be enormous. */
async function spentUnderCap(reask: object, content: string, max_tokens: number): Promise<[number, number]> {
  await using upstream = await testUpstream(({ body, response }) => {
    const isFirst = upstream.calls.filter(
      (call) => call.body.messages[0]?.content === body.messages[0]?.content,
    )
    const prompt_tokens = isFirst.length <= 1 ? 60 : 1_000_000
    const usage = { prompt_tokens, completion_tokens: 5, total_tokens: prompt_tokens + 5 }
    const choice = { index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }
    send(response, 200, JSON.stringify({ id: 'c', object: 'chat.completion', choices: [choice], usage }))
  })
  const prices = 'price: {input_per_mtok: 1000, output_per_mtok: 1000}'
  await using service = await TestService.start(`
models:
  - {id: m, ${prices}, upstreams: [{type: openai, base_url: "${upstream.base_url}"}]}
worker: {flush_interval: 20ms}`)
  const limit = { scope: 'project', metric: 'cost_usd', amount: 25, window: 'day', action: 'block' }
  await service.json('POST', '/v1/limits', limit)
  const some = lines(3).map((one) => ({ ...one, body: { ...one.body, max_tokens } }))
  const { cost_usd } = await service.run(some, { reask })
  return [Number(cost_usd), upstream.calls.length]
}

test('a server whose answers are enormous, or said to be, passes no cap, however often it is asked again', async () => {
  assert.deepEqual(await spentUnderCap({ max: 5, mode: 'repair' }, 'x'.repeat(1_000_000), 5), [0.195, 3])
  for (const mode of ['repair', 'repeat']) {
    const [cost, calls] = await spentUnderCap({ max: 2, mode }, '{"name":1}', 5)
    assert.ok(calls >= 6 && cost > 0.2 && cost <= 25, `${mode}: ${calls} calls, $${cost}`)
  }
})

test('a retry asks again as its batch did', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(response, 400, '{"error":{"message":"no"}}'),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const reask = { max: 5, mode: 'repair' }
  const batch = await service.run(lines(1), { reask })
  const again = await service.json<Reasking>('POST', `/v1/batches/${batch.id}/retry`, {})
  assert.deepEqual(again.reask, reask)
  await service.ended(again.id)
})

test('terms that make no sense are refused', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'))
  const order = { input_file_id: 'file_x', endpoint: '/v1/chat/completions', completion_window: '24h' }
  for (const [body, param] of [
    [{ reask: { max: 0, mode: 'repeat' } }, 'reask.max'],
    [{ reask: { max: 6, mode: 'repeat' } }, 'reask.max'],
    [{ reask: { max: 1, mode: 'again' } }, 'reask.mode'],
    [{ reask: { max: 1, mode: 'repeat', by: 1 } }, 'reask.by'],
    [{ reask: { max: 1, mode: 'repeat' }, endpoint: '/v1/embeddings' }, 'reask'],
  ] as const) {
    const call = await service.request('POST', '/v1/batches', JSON.stringify({ ...order, ...body }), {
      'content-type': 'application/json',
    })
    const { error } = (await call.json()) as { error: { param: string } }
    assert.deepEqual([call.status, error.param], [400, param])
  }
})
