import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Reask } from '../domain/batch.ts'
import type { Model } from '../domain/model.ts'
import { FREE } from '../domain/money.ts'
import { REPAIR_TOKENS_MAX } from './ask-again.ts'
import { type InputLine, LineScanner } from './line-scan.ts'
import { addLine, emptySums, partsOf, projectLines, projectSums, projectTokens } from './projection.ts'

const model: Model = {
  id: 'm',
  context_window: null,
  max_output_tokens: 50,
  price: FREE,
  priced: true,
  supports: { structured_output: true, tools: true },
  endpoints: ['/v1/chat/completions'],
  created: 0,
}
const unbounded: Model = { ...model, max_output_tokens: null }
const messages = [{ role: 'user', content: 'x'.repeat(370) }]
assert.equal(JSON.stringify(messages).length, 400)

function lineOf(body: Record<string, unknown>): InputLine {
  return lineFor('/v1/chat/completions', { messages, ...body })
}

function lineFor(url: string, body: Record<string, unknown>): InputLine {
  const text = JSON.stringify({ custom_id: 'a', method: 'POST', url, body: { model: 'm', ...body } })
  const line = new LineScanner().scan(Buffer.from(text), 0, Buffer.byteLength(text))
  assert.ok(line.ok)
  return line
}

test('a line may use its messages, and its output limit for every choice', () => {
  const output = (body: Record<string, unknown>, on = model): number =>
    projectTokens(lineOf(body), on).output_tokens_max
  assert.equal(projectTokens(lineOf({}), model).input_tokens, 100)
  assert.equal(output({ max_tokens: 10 }), 10)
  assert.equal(output({ max_completion_tokens: 20 }), 20)
  assert.equal(output({ max_tokens: 10, max_completion_tokens: 20 }), 20)
  assert.equal(output({ max_tokens: 10, n: 3 }), 30)
  assert.equal(output({ n: 3 }), 150)
  assert.equal(output({ n: 3 }, unbounded), 0)
  // One that stands for no limit, which a server may obey whatever the other says.
  assert.equal(output({ max_tokens: -1 }), 50)
  assert.equal(output({ max_tokens: 10, max_completion_tokens: 0 }), 50)
  assert.equal(output({ max_tokens: 10, n: 1_000_000 }), 10_000_000)
})

test('tools and a response format are input; a picture counts by the piece', () => {
  const tools = [{ type: 'function', function: { name: 'f', description: 'y'.repeat(338) } }]
  assert.equal(JSON.stringify(tools).length, 400)
  assert.equal(projectTokens(lineOf({ tools }), model).input_tokens, 200)
  const image = { type: 'image_url', image_url: { url: 'A'.repeat(1_000_000) } }
  const seen = projectTokens(lineOf({ messages: [{ role: 'user', content: [image] }] }), model)
  assert.ok(seen.input_tokens > 1000 && seen.input_tokens < 1100)
})

test('of the parts of a message, pictures and files count by the piece, and all text by its length', () => {
  const tokens = (...content: object[]): number =>
    projectTokens(
      lineFor('/v1/messages', { messages: [{ role: 'user', content }], max_tokens: 1 }),
      unbounded,
    ).input_tokens
  const text = 'x'.repeat(40_000)
  const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: text } }
  const long = [
    { type: 'tool_use', id: 't', name: 'f', input: { text } },
    { type: 'tool_result', tool_use_id: 't', content: text },
    { type: 'tool_result', tool_use_id: 't', content: [{ type: 'text', text }] },
    { type: 'thinking', thinking: text, signature: 's' },
    { type: 'document', source: { type: 'text', media_type: 'text/plain', data: text } },
    { type: 'search_result', source: 'https://example.com', title: 't', content: [{ type: 'text', text }] },
  ]
  for (const part of long) {
    const all = tokens(part)
    assert.ok(all >= 10_000 && all < 10_100, `${part.type}: ${all}`)
  }
  const pdf = { type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: text } }
  for (const part of [image, pdf, { type: 'tool_result', tool_use_id: 't', content: [image] }]) {
    const all = tokens(part)
    assert.ok(all > 1_000 && all < 1_100, `${part.type}: ${all}`)
  }
  assert.ok(
    tokens({ type: 'tool_result', tool_use_id: 't', content: [image, { type: 'text', text }] }) > 11_000,
  )
})

test('the sums of a group project as its lines do, on any model', () => {
  const bodies = [{}, { n: 2 }, { max_tokens: 7 }, { max_tokens: 7, n: 4 }, { max_completion_tokens: 9 }]
  const lines = [...bodies, { web_search_options: {} }].map(lineOf)
  const sums = emptySums('m', null)
  for (const line of lines) addLine(sums, line.body)
  assert.deepEqual([sums.lines, sums.longer?.map(({ lines }) => lines)], [5, [1]])
  for (const on of [model, unbounded]) {
    const each = lines.map((line) => projectTokens(line, on))
    assert.deepEqual(projectSums(sums, on), {
      input_tokens: each.reduce((sum, tokens) => sum + tokens.input_tokens, 0),
      output_tokens_max: each.reduce((sum, tokens) => sum + tokens.output_tokens_max, 0),
    })
  }
})

test('lines with long prompts are summed by what their prompts may reach, so that each has its own price', () => {
  const sums = emptySums('m', null)
  const ofBytes = (bytes: number) => lineOf({ messages: [{ role: 'user', content: 'x'.repeat(bytes) }] }).body
  for (const bytes of [10, 10, 100_000, 110_000, 600_000]) addLine(sums, ofBytes(bytes))
  const parts = partsOf(sums).map(({ lines, reach }) => [lines, Math.floor(reach / 1_000)])
  assert.deepEqual(parts, [
    [2, 4],
    [2, 114],
    [1, 604],
  ])
  const step = { prompt_tokens: 200_000, input_picos: 2_000_000, output_picos: 0 }
  const price = { input_picos: 1_000_000, output_picos: 0, above: [step] }
  const spend = (input_tokens: number, reach: number, reask: Reask | null = null) =>
    projectLines({ input_tokens, output_tokens_max: 0 }, { ...model, price }, reask, 1, reach).spend
      .cost_nanos
  assert.deepEqual([spend(10, 200_000), spend(10, 200_001)], [10_000, 20_000])
  // A repair has the answer and its defect besides.
  const repair = spend(10, 199_900, { max: 1, mode: 'repair' })
  assert.equal(repair, 2 * (20 + REPAIR_TOKENS_MAX) * 1_000)
})

test('a prompt with parts that only the server sees has the whole window of its model', () => {
  const input = (url: string, body: object, on: Partial<Model> = { context_window: 9_000 }): number =>
    projectTokens(lineFor(url, { ...body }), { ...model, ...on }).input_tokens
  const part = (...content: object[]) => ({ input: [{ role: 'user', content }] })
  const ask = { messages, max_tokens: 5 }
  const within = (one: object) => ({ messages: [{ role: 'user', content: [one] }], max_tokens: 5 })
  const unseen: [string, object][] = [
    ['/v1/responses', { input: 'hi', previous_response_id: 'r' }],
    ['/v1/responses', { input: 'hi', conversation: { id: 'c' } }],
    ['/v1/responses', { prompt: { id: 'p' } }],
    ['/v1/responses', { previous_response_id: 'r' }],
    ['/v1/responses', { conversation: 'c' }],
    ['/v1/chat/completions', { messages, tools: [{ type: 'web_search' }] }],
    ['/v1/chat/completions', { messages, tools: { type: 'web_search' } }],
    ['/v1/chat/completions', { messages: [{ role: 'user', content: { file_id: 'f' } }] }],
    ['/v1/responses', { input: 'hi', tools: [{ type: 'file_search', vector_store_ids: ['v'] }] }],
    ['/v1/responses', { input: [{ type: 'item_reference', id: 'i' }] }],
    ['/v1/responses', part({ type: 'input_file', file_id: 'f' })],
    ['/v1/responses', part({ type: 'input_file', file_url: 'https://example.com/f.pdf' })],
    ['/v1/responses', part({ type: 'input_file', file_id: 'f', file_data: 'data:text/plain,x' })],
    ['/v1/chat/completions', { messages, web_search_options: {} }],
    ['/v1/chat/completions', within({ type: 'file', file: { file_id: 'f' } })],
    ['/v1/chat/completions', within({ type: 'file', file: { file_data: 'gs://bucket/film' } })],
    ['/v1/chat/completions', within({ type: 'video_url', video_url: { url: 'https://example.com/film' } })],
    ['/v1/messages', within({ type: 'document', source: { type: 'url', url: 'https://example.com/f' } })],
    ['/v1/messages', within({ type: 'document', source: { type: 'file', file_id: 'f', data: 'x' } })],
    [
      '/v1/messages',
      within({
        type: 'tool_result',
        content: [{ type: 'document', source: { type: 'file', file_id: 'f' } }],
      }),
    ],
    ['/v1/messages', within({ type: 'container_upload', file_id: 'f' })],
    ['/v1/messages', { ...ask, container: 'c' }],
    ['/v1/messages', { ...ask, mcp_servers: [{}] }],
    ['/v1/messages', { ...ask, tools: [{ type: 'web_search_20250305', name: 'w' }] }],
  ]
  for (const [url, body] of unseen) {
    assert.equal(input(url, body), 9_000, JSON.stringify(body))
    assert.equal(input(url, body, {}), 2 ** 20, 'a window that nobody knows')
  }
  const seen: [string, object][] = [
    ['/v1/responses', { input: 'hi', previous_response_id: null, tools: [{ type: 'function', name: 'f' }] }],
    [
      '/v1/responses',
      part({ type: 'input_file', filename: 'f.pdf', file_data: 'data:application/pdf;base64,AA' }),
    ],
    ['/v1/responses', part({ type: 'input_image', file_id: 'f' })],
    ['/v1/chat/completions', within({ type: 'video_url', video_url: { url: 'data:video/mp4;base64,AA' } })],
    ['/v1/messages', within({ type: 'document', source: { type: 'base64', media_type: 'a/b', data: 'AA' } })],
    ['/v1/messages', { ...ask, tools: [{ name: 'f', input_schema: {} }] }],
  ]
  for (const [url, body] of seen) assert.ok(input(url, body) < 1_100, JSON.stringify(body))
})

test('absurd and wrong numbers leave the sums exact integers', () => {
  const sums = emptySums('m', null)
  for (const max_tokens of [1e300, -1, 0.5, 'x', 1e300]) {
    for (let i = 0; i < 100; i++) addLine(sums, lineOf({ max_tokens, n: 1e300 }).body)
  }
  assert.ok(Number.isSafeInteger(sums.output_tokens_max_given))
  assert.ok(Number.isSafeInteger(sums.open_choices))
  assert.ok(Number.isSafeInteger(projectSums(sums, model).output_tokens_max))
})

test('other endpoints have the tokens of their own prompts, and no output where nothing is generated', () => {
  const text = 'x'.repeat(40)
  const seen = { bytes: 80_000, tokens: 40_000, long_bytes: 0, long_tokens: 0 }
  const cases: [string, Record<string, unknown>, input: number, output: number][] = [
    ['/v1/embeddings', { input: text }, 10, 0],
    ['/v1/embeddings', { input: [text, text], max_tokens: 5 }, 20, 0],
    ['/v1/embeddings', { input: [[1, 2], [3]] }, 3, 0],
    ['/v1/rerank', { query: text, documents: [text, text, text] }, 60, 0],
    ['/v1/score', { text_1: [text, text], text_2: [text, text] }, 40, 0],
    ['/v1/completions', { prompt: [text, text], n: 3, max_tokens: 5 }, 20, 30],
    ['/v1/completions', { prompt: [1, 2, 3] }, 3, 50],
    ['/v1/completions', { prompt_embeds: [text, text], max_tokens: 5 }, 20, 10],
    ['/v1/completions', { prompt: text, prompt_embeds: [text], max_tokens: 5 }, 20, 10],
    ['/v1/embeddings', { messages }, 100, 0],
    ['/v1/responses', { input: text, max_output_tokens: 7 }, 11, 7],
    [
      '/v1/responses',
      { input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'A'.repeat(100_000) }] }] },
      1008,
      50,
    ],
    ['/v1/messages', { messages, system: 'x'.repeat(38), max_tokens: 7 }, 110, 7],
  ]
  for (const [url, body, input_tokens, output_tokens_max] of cases) {
    const line = lineFor(url, body)
    assert.deepEqual(projectTokens(line, model), { input_tokens, output_tokens_max }, JSON.stringify(body))
    const sums = emptySums('m', null)
    addLine(sums, line.body)
    assert.deepEqual(projectSums(sums, model), { input_tokens, output_tokens_max })
  }
  const ids = lineFor('/v1/embeddings', { input: [[1, 2], [3]] })
  assert.equal(projectTokens(ids, { ...model, seen }).input_tokens, 3, 'token IDs are counted, not estimated')
})
