// Structured outputs and tools, from the request to the second round, with the simulator as the model.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { runOffpeak } from '../fakes/offpeak.ts'
import { completion, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const SIM = 'models: [{id: m, price: {input_per_mtok: 1, output_per_mtok: 2}, upstreams: [{type: sim}]}]'

const SCHEMA = {
  type: 'object',
  properties: {
    verdict: { type: 'string', enum: ['yes', 'no'] },
    score: { type: 'integer', minimum: 0, maximum: 9 },
  },
  required: ['verdict', 'score'],
  additionalProperties: false,
}
const RESPONSE_FORMAT = { type: 'json_schema', json_schema: { name: 'review', strict: true, schema: SCHEMA } }
const TOOL = {
  type: 'function',
  function: {
    name: 'get_weather',
    parameters: { type: 'object', properties: { city: { enum: ['Lima', 'Osaka'] } }, required: ['city'] },
  },
}
const ABOUT = { entity: 'user:42', conversation: 'trip-7' }

interface Answered {
  choices: { finish_reason: string; message: { content: string | null; tool_calls?: ToolCall[] } }[]
}
interface ToolCall {
  id: string
  type: string
  function: { name: string; arguments: string }
}

async function answers(service: TestService, file_id: string | null): Promise<Answered['choices']> {
  const text = await service.content(file_id)
  return text
    .trimEnd()
    .split('\n')
    .map((one): { response: { body: Answered } } => JSON.parse(one))
    .map(({ response }) => response.body.choices[0]!)
}

test('a strict schema is answered with an instance of it', async () => {
  await using service = await TestService.start(SIM)
  const lines = Array.from({ length: 20 }, (_, i) =>
    line(`l${i}`, `text ${i}`, { response_format: RESPONSE_FORMAT }),
  )
  const batch = await service.run(lines)
  assert.equal(batch.request_counts.completed, 20)
  for (const { message, finish_reason } of await answers(service, batch.output_file_id)) {
    const { verdict, score, ...rest }: { verdict: string; score: number } = JSON.parse(message.content ?? '')
    assert.ok(['yes', 'no'].includes(verdict) && Number.isInteger(score) && score >= 0 && score <= 9)
    assert.deepEqual(rest, {})
    assert.equal(finish_reason, 'stop')
  }
})

test('a model without strict schemas says so, is sent the request as it is, and its best effort is a result', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(response, 200, completion('{"verdict": ye')),
  )
  await using service = await TestService.start(
    `${configFor(upstream.base_url)}`.replace(
      'upstreams:',
      'supports: {structured_output: false}\n    upstreams:',
    ),
  )
  const model = await service.json<{ supports: { structured_output: boolean } }>('GET', '/v1/models/m')
  assert.equal(model.supports.structured_output, false)
  const batch = await service.run([line('a', 'a', { response_format: RESPONSE_FORMAT })])
  assert.deepEqual(batch.request_counts, { total: 1, completed: 1, failed: 0 })
  assert.deepEqual(upstream.calls[0]?.body.response_format, RESPONSE_FORMAT)
  const [answer] = await answers(service, batch.output_file_id)
  assert.throws(() => JSON.parse(answer?.message.content ?? ''))
})

test('a tool loop of two rounds runs under one entity and conversation, each round billed by itself', async () => {
  await using service = await TestService.start(SIM)
  const at = (name: string): string => join(service.folder, name)
  const asks = (id: string): object => ({
    ...line(id, `weather, ${id}?`, { tools: [TOOL] }),
    metadata: ABOUT,
  })
  const first = [asks('a'), line('plain', 'no tools here'), asks('b')]
    .map((one) => JSON.stringify(one))
    .join('\n')
  const round1 = await service.run(first)
  await writeFile(at('in.jsonl'), first)
  await writeFile(at('out.jsonl'), await service.content(round1.output_file_id))
  const [a] = await answers(service, round1.output_file_id)
  assert.equal(a?.finish_reason, 'tool_calls')
  assert.equal(a.message.content, null)

  const offpeak = (...args: string[]) => runOffpeak(['next-round', ...args])
  const wanted = (await offpeak(at('out.jsonl'))).out
    .trimEnd()
    .split('\n')
    .map((text): { custom_id: string; tool_call_id: string; name: string; arguments: string } =>
      JSON.parse(text),
    )
  assert.deepEqual(
    wanted.map(({ custom_id, name }) => [custom_id, name]),
    [
      ['a', 'get_weather'],
      ['b', 'get_weather'],
    ],
  )
  const said = wanted.map(({ custom_id, tool_call_id, arguments: text }) => {
    const { city }: { city: string } = JSON.parse(text)
    assert.ok(['Lima', 'Osaka'].includes(city))
    return JSON.stringify({ custom_id, tool_call_id, content: { city, celsius: 21 } })
  })
  await writeFile(at('half.jsonl'), said[0] ?? '')
  const half = await offpeak(at('out.jsonl'), '--input', at('in.jsonl'), '--tools', at('half.jsonl'))
  assert.equal(half.code, 1)
  assert.match(half.err, /no result for get_weather \(\S+\) of line b/)
  await writeFile(at('tools.jsonl'), said.join('\n'))
  const made = await offpeak(at('out.jsonl'), '--input', at('in.jsonl'), '--tools', at('tools.jsonl'))
  assert.equal(made.code, 0, made.err)

  const round2 = await service.run(made.out)
  assert.deepEqual(round2.request_counts, { total: 2, completed: 2, failed: 0 })
  assert.ok(round1.cost_usd > 0 && round2.cost_usd > 0 && round1.id !== round2.id)
  for (const { message, finish_reason } of await answers(service, round2.output_file_id)) {
    assert.equal(finish_reason, 'stop')
    assert.equal(message.tool_calls, undefined)
  }
  for (const { output_file_id } of [round1, round2]) {
    const [one] = await service.lines(output_file_id)
    const record = await service.json<Record<string, unknown>>('GET', `/v1/requests/${one?.id}`)
    assert.deepEqual([record.entity, record.conversation], [ABOUT.entity, ABOUT.conversation])
  }
})
