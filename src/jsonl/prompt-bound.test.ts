import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import type { EndpointPath } from '../domain/endpoint.ts'
import { LineScanner } from './line-scan.ts'
import { projectTokens, promptOf } from './projection.ts'
import { promptTokensMax } from './prompt-bound.ts'

const whole = (bytes: Buffer) => ({ start: 0, end: bytes.length })

const CHAT = '/v1/chat/completions'
const MORE_THAN_BYTES = 2 ** 31
const IMAGE = 65_536
const JPEG = { type: 'image_url', image_url: { url: 'data:image/jpeg;base64,AAAA' } }

function inputsOf(url: EndpointPath, body: object): number {
  const line = JSON.stringify({ custom_id: 'a', method: 'POST', url, body: { model: 'm', ...body } })
  const scanned = new LineScanner().scan(Buffer.from(line), 0, Buffer.byteLength(line))
  assert.ok(scanned.ok)
  return promptOf(scanned.body).inputs
}

/** The tokens of the bound beyond the bytes of the body. */
function beyondBytes(url: EndpointPath, body: object, reported = MORE_THAN_BYTES): number {
  const bytes = Buffer.from(JSON.stringify(body))
  return promptTokensMax(bytes, whole(bytes), url, inputsOf(url, body), reported) - bytes.length
}

/** The tokens of a ChatML prompt by a tokenizer that knows nothing but bytes, and the two marks of a message. */
function byteTokens(messages: readonly { role: string; content: string }[]): number {
  return messages.reduce(
    (sum, { role, content }) => sum + 2 + Buffer.byteLength(`${role}\n${content.toWellFormed()}\n`),
    0,
  )
}

test('no tokenizer makes more of a chat than its bytes and a template', () => {
  const message = fc.record({
    role: fc.constantFrom('system', 'user', 'assistant'),
    content: fc.oneof(
      fc.string({ unit: 'binary' }),
      fc.string(),
      fc.constant(''),
      fc.constant('\u0000\u001b'),
    ),
  })
  fc.assert(
    fc.property(fc.array(message, { maxLength: 20 }), (messages) => {
      const tokens = byteTokens(messages)
      const bytes = Buffer.from(JSON.stringify({ messages }))
      assert.ok(promptTokensMax(bytes, whole(bytes), CHAT, 1, tokens) >= tokens)
    }),
    { numRuns: 30 },
  )
})

describe('what the bytes of a body do not bound', () => {
  const messages = [{ role: 'user', content: 'hi' }]
  const calls = { role: 'assistant', content: null, tool_calls: [] }
  const tools = [{ type: 'function', function: { name: 'f', description: 'x'.repeat(500) } }]
  const film = { type: 'video_url', video_url: { url: 'https://example.com/film' } }
  const sound = { type: 'input_audio', input_audio: { data: 'AAAA', format: 'wav' } }
  const format = { format: { type: 'text' } }
  const named = { type: 'function', name: 'f' }
  const bytesOf = (value: unknown): number => JSON.stringify(value).length
  const cases: [string, EndpointPath, object, number][] = [
    ['a chat', CHAT, { messages: [...messages, calls] }, 4_096],
    ['tools, which templates write anew', CHAT, { messages, tools }, 4_096 + bytesOf(tools)],
    ['a picture', CHAT, { messages: [{ role: 'user', content: [JPEG] }] }, 4_096 + IMAGE],
    ['sound, which is in the body', CHAT, { messages: [{ role: 'user', content: [sound] }] }, 4_096],
    ['a film', CHAT, { messages: [{ role: 'user', content: [film] }] }, Number.POSITIVE_INFINITY],
    ['prompts', '/v1/completions', { prompt: ['a', 'b', 'c'] }, 3 * 16],
    ['token IDs', '/v1/embeddings', { input: [[1, 2], [3]] }, 2 * 256],
    ['texts', '/v1/embeddings', { input: ['a', 'b'] }, 2 * 256],
    [
      'a query with each document',
      '/v1/rerank',
      { query: 'aaaaaa', documents: ['b', 'c', 'd'] },
      3 * 256 + 2 * 10,
    ],
    ['pairs', '/v1/score', { text_1: ['a', 'b'], text_2: ['c', 'd'] }, 2 * 256],
    [
      'a picture for each text',
      '/v1/score',
      { text_1: { content: [JPEG] }, text_2: ['c', 'd'] },
      512 + 2 * IMAGE + bytesOf([{ content: [JPEG] }]),
    ],
    ['a response', '/v1/responses', { input: 'hi', text: format }, 4_096 + bytesOf(format)],
    [
      'items',
      '/v1/responses',
      { input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] },
      4_096 + IMAGE,
    ],
    [
      'an earlier response',
      '/v1/responses',
      { input: 'hi', previous_response_id: 'r' },
      Number.POSITIVE_INFINITY,
    ],
    ['a stored prompt', '/v1/responses', { input: 'hi', prompt: { id: 'p' } }, Number.POSITIVE_INFINITY],
    [
      'a file',
      '/v1/responses',
      { input: [{ role: 'user', content: [{ type: 'input_file', file_id: 'f' }] }] },
      Number.POSITIVE_INFINITY,
    ],
    [
      'an item of the provider',
      '/v1/responses',
      { input: [{ type: 'item_reference', id: 'i' }] },
      Number.POSITIVE_INFINITY,
    ],
    [
      'a tool of the provider',
      '/v1/responses',
      { input: 'hi', tools: [{ type: 'web_search' }] },
      Number.POSITIVE_INFINITY,
    ],
    ...messageCases(),
    ['a function', '/v1/responses', { input: 'hi', tools: [named] }, 4_096 + bytesOf([named])],
  ]
  for (const [what, url, body, expected] of cases)
    test(what, () => assert.equal(beyondBytes(url, body), expected))
})

function messageCases(): [string, EndpointPath, object, number][] {
  const url = '/v1/messages'
  const of = (...content: object[]): object => ({ messages: [{ role: 'user', content }] })
  const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } }
  const result = { type: 'tool_result', tool_use_id: 't', content: [image, { type: 'text', text: 'x' }] }
  const call = { type: 'tool_use', id: 't', name: 'f', input: {} }
  const text = { type: 'document', source: { type: 'text', data: 'x' } }
  const file = { type: 'document', source: { type: 'base64', data: 'AAAA' } }
  const own = [{ name: 'f', input_schema: { type: 'object' } }]
  return [
    ['a message that calls tools', url, of(call, text), 4_096],
    ['a picture in the result of a tool', url, of(result), 4_096 + IMAGE],
    ['a file in a message', url, of(file), 4_096 + 2 ** 40],
    ['a file of a message', url, of({ ...file, file_id: 'f' }), Number.POSITIVE_INFINITY],
    ['tools of a message', url, { ...of(), tools: own }, 4_096 + JSON.stringify(own).length],
    ['a server tool', url, { ...of(), tools: [{ type: 'web_search_20250305' }] }, Number.POSITIVE_INFINITY],
    ['servers of tools', url, { ...of(), mcp_servers: [{}] }, Number.POSITIVE_INFINITY],
  ]
}

test('a body is parsed only for a report that its bytes do not explain', () => {
  const bytes = Buffer.from('{"messages": no')
  assert.equal(promptTokensMax(bytes, whole(bytes), CHAT, 1, 4_096), 4_096 + 15)
})

test('whatever is projected for a line can be billed', () => {
  const model = { id: 'm', context_window: null, max_output_tokens: null, priced: false, created: 0 }
  const supports = { structured_output: true, tools: true }
  const bodies: [EndpointPath, object][] = [
    [CHAT, { messages: [{ role: 'user', content: [{ type: 'text', text: 'hi' }, JPEG, JPEG] }] }],
    ['/v1/embeddings', { input: ['a', 'b'] }],
    ['/v1/rerank', { query: 'a'.repeat(9_000), documents: ['b', 'c', 'd'] }],
  ]
  for (const [url, body] of bodies) {
    const line = JSON.stringify({ custom_id: 'a', method: 'POST', url, body: { model: 'm', ...body } })
    const scanned = new LineScanner().scan(Buffer.from(line), 0, Buffer.byteLength(line))
    assert.ok(scanned.ok)
    const price = { input_picos: 0, output_picos: 0 }
    const { input_tokens } = projectTokens(scanned, { ...model, price, supports, endpoints: [url] })
    const bytes = Buffer.from(JSON.stringify(body))
    assert.ok(
      promptTokensMax(bytes, whole(bytes), url, inputsOf(url, body), input_tokens) >= input_tokens,
      url,
    )
  }
})
