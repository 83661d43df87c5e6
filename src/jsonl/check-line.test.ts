import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Model } from '../domain/model.ts'
import { FREE } from '../domain/money.ts'
import { checkLine } from './check-line.ts'
import { type InputLine, LineScanner } from './line-scan.ts'

const sim: Model = {
  id: 'sim-1',
  context_window: 1000,
  max_output_tokens: 100,
  price: FREE,
  priced: true,
  supports: { structured_output: true, tools: true },
  endpoints: ['/v1/chat/completions'],
  created: 0,
}
const models = new Map([
  ['sim-1', sim],
  ['open', { ...sim, id: 'open', context_window: null }],
])

function lineOf(body: unknown): InputLine {
  const bytes = Buffer.from(
    JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body }),
  )
  const line = new LineScanner().scan(bytes, 0, bytes.length)
  assert.ok(line.ok)
  return line
}

/** The error of a valid body with the fields of `change`. */
function check(change: Record<string, unknown>): [string, string | undefined] | null {
  const error = checkLine(
    lineOf({ model: 'sim-1', messages: [{ role: 'user', content: 'Hi' }], ...change }),
    models,
    '/v1/chat/completions',
  )
  return error && [error.code, error.param]
}

/** The error of a valid body with more members, as text. */
function checkText(members: string): ReturnType<typeof checkLine> {
  return checkBody(`{"model":"sim-1","messages":[{"role":"user","content":"Hi"}],${members}}`)
}

function checkBody(body: string): ReturnType<typeof checkLine> {
  const bytes = Buffer.from(`{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":${body}}`)
  const line = new LineScanner().scan(bytes, 0, bytes.length)
  assert.ok(line.ok)
  return checkLine(line, models, '/v1/chat/completions')
}

test('a body that can run is let through', () => {
  assert.equal(check({}), null)
  const full = {
    temperature: 0.7,
    max_tokens: 10,
    max_completion_tokens: 12,
    n: 2,
    tools: [{ type: 'function', function: { name: 'f', parameters: {} } }],
    response_format: { type: 'json_schema', json_schema: { name: 's', strict: true, schema: {} } },
    unknown_to_us: [1],
  }
  assert.equal(check(full), null)
  assert.equal(
    check({ max_tokens: null, n: null, temperature: null, tools: null, response_format: null }),
    null,
  )
  assert.equal(check({ tools: [], response_format: { type: 'json_object' } }), null)
})

describe('a line fails alone', () => {
  const cases: [string, Record<string, unknown>, string][] = [
    ['without a model', { model: undefined }, 'model'],
    ['with a model that is no string', { model: 7 }, 'model'],
    ['without messages', { messages: undefined }, 'messages'],
    ['with messages that are no array', { messages: {} }, 'messages'],
    ['with no message', { messages: [] }, 'messages'],
    ['with a message that is no object', { messages: ['Hi'] }, 'messages[0]'],
    ['with a message without role', { messages: [{ content: 'Hi' }] }, 'messages[0].role'],
    ['with half a token', { max_tokens: 1.5 }, 'max_tokens'],
    ['with max_tokens in words', { max_tokens: '10' }, 'max_tokens'],
    ['with n of zero', { n: 0 }, 'n'],
    ['with a temperature that is no number', { temperature: 'warm' }, 'temperature'],
  ]
  for (const [name, change, param] of cases) {
    test(name, () => assert.deepEqual(check(change), ['invalid_request', param]))
  }

  test('with a model that does not exist', () => {
    assert.deepEqual(check({ model: 'sim-2' }), ['model_not_found', 'model'])
    assert.deepEqual(check({ model: '__proto__' }), ['model_not_found', 'model'])
  })

  const keys: [string, Record<string, unknown>, string, RegExp][] = [
    ['Model beside model', { Model: 'big' }, 'Model', /"Model", which some servers read as `model`/],
    ['MAX_TOKENS', { MAX_TOKENS: 9 }, 'MAX_TOKENS', /`max_tokens`/],
    ['Max_Completion_Tokens', { Max_Completion_Tokens: 9 }, 'Max_Completion_Tokens', /`max_comp/],
    ['N', { N: 128 }, 'N', /read as `n`/],
    ['Stream', { Stream: true }, 'Stream', /`stream`/],
    ['Stream_Options', { Stream_Options: {} }, 'Stream_Options', /`stream_options`/],
    ['Messages', { Messages: [] }, 'Messages', /`messages`/],
    ['a Kelvin sign for a k', { max_toKens: 9 }, 'max_to\u212aens', /`max_tokens`/],
    ['a long s for an s', { ſtream: true }, '\u017ftream', /`stream`/],
    ['Content', { messages: [{ role: 'user', content: 'Hi', Content: 'Ho' }] }, 'messages', /"Content"/],
    [
      'Text in a part',
      { messages: [{ role: 'user', content: [{ type: 'text', Text: 'Ho' }] }] },
      'messages',
      /"Text"/,
    ],
  ]
  for (const [name, change, param, message] of keys) {
    test(`with a key that is one of ours but for case: ${name}`, () => {
      assert.deepEqual(check(change), ['invalid_request', param])
      const line = lineOf({ model: 'sim-1', messages: [{ role: 'user', content: 'Hi' }], ...change })
      assert.match(checkLine(line, models, '/v1/chat/completions')?.message ?? '', message)
    })
  }

  test('with a key that is one of ours but for case, whatever escapes it is written with', () => {
    assert.equal(checkText('"\\u004dodel":"big"')?.param, 'Model')
    assert.equal(checkText('"max_to\\u212aens":9')?.param, 'max_to\u212aens')
  })

  test('with one of our keys twice, whatever its values', () => {
    for (const members of [
      '"n":1,"n":1',
      '"model":"sim-1"',
      '"messages":[]',
      '"max_tokens":1,"max\\u005ftokens":9',
    ]) {
      const error = checkText(members)
      assert.equal(error?.code, 'invalid_request', members)
      assert.match(error?.message ?? '', /twice in one object/)
    }
    const error = checkText('"tools":[{"type":"function","type":"function","function":{"name":"f"}}]')
    assert.deepEqual([error?.param, error?.code], ['tools', 'invalid_request'])
  })

  test('with an output limit or a number of choices that only some servers read', () => {
    for (const key of [
      'n_predict',
      'max_new_tokens',
      'max_tokens_to_sample',
      'best_of',
      'n_cmpl',
      'num_predict',
    ]) {
      for (const value of [5, null]) assert.deepEqual(check({ [key]: value }), ['invalid_request', key])
    }
    assert.match(checkText('"n_predict":5')?.message ?? '', /Use `max_tokens` instead/)
    assert.match(checkText('"best_of":5')?.message ?? '', /Use `n` instead/)
    assert.equal(checkText('"N_Predict":5')?.param, 'N_Predict')
    assert.equal(check({ messages: [{ role: 'user', content: 'Hi', n_predict: 5 }] }), null)
  })

  test('with a stream that an older version let through', () => {
    const bytes = Buffer.from(
      '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"sim-1","stream":true}}',
    )
    const line = new LineScanner({ validated: true }).scan(bytes, 0, bytes.length)
    assert.ok(line.ok)
    assert.equal(checkLine(line, models, '/v1/chat/completions')?.code, 'streaming_not_supported')
  })
})

const LEFT_TO_SERVERS: Record<string, Record<string, unknown>> = {
  'a role of a model': { messages: [{ role: 'ipython', content: 'Hi' }] },
  'a message without content': { messages: [{ role: 'user' }] },
  'content that is null, a number or an object': {
    messages: [null, 1, { text: 'Hi' }].map((content) => ({ role: 'user', content })),
  },
  'a result of a tool without its call': { messages: [{ role: 'tool', content: '1' }] },
  'a limit of zero': { max_tokens: 0 },
  'a limit of -1, which is none': { max_completion_tokens: -1 },
  'a custom tool': { tools: [{ type: 'custom', custom: { name: 'f' } }] },
  'a tool of a provider': { tools: [{ type: 'web_search' }, { type: 'function', function: {} }] },
  'tools in another form': { tools: { f: {} } },
  'a response format of a server': { response_format: { type: 'grammar', value: '…' } },
  'a schema without a name': { response_format: { type: 'json_schema', json_schema: { schema: {} } } },
  'a schema that is flat': { response_format: { type: 'json_schema', name: 's', schema: {} } },
}
for (const [what, change] of Object.entries(LEFT_TO_SERVERS))
  test(`servers decide about ${what}`, () => assert.equal(check(change), null))

test('a stream and its options of false or null are as if they were left out', () => {
  for (const stream of [false, null])
    for (const stream_options of [false, null]) assert.equal(check({ stream, stream_options }), null)
})

test('keys that nobody here reads may be what they like, twice too, in any case', () => {
  assert.equal(check({ Top_p: 1, top_p: 2, Metadata: {}, logit_Bias: {} }), null)
  assert.equal(
    checkText(
      '"top_p":1,"top_p":2,"tools":[{"type":"function","function":{"name":"f","parameters":{"Type":"object","N":1,"N":2}}}]',
    ),
    null,
  )
  const two = [
    {
      role: 'user',
      content: [
        { type: 'text', text: 'a' },
        { type: 'text', text: 'b' },
      ],
    },
    { role: 'user', content: 'c' },
  ]
  assert.equal(check({ messages: two }), null)
})

describe('the context window', () => {
  const exceeded = ['context_length_exceeded', 'messages']
  const user = (content: unknown): unknown[] => [{ role: 'user', content }]

  test('is exceeded by max_tokens alone', () => {
    assert.equal(check({ max_tokens: 999 }), null)
    assert.deepEqual(check({ max_tokens: 1000 }), exceeded)
    assert.equal(check({ max_tokens: 1000, messages: user('') }), null)
    assert.deepEqual(check({ max_tokens: 1001, messages: user('') }), exceeded)
    assert.deepEqual(check({ max_completion_tokens: 1001 }), exceeded)
  })

  test('is exceeded by input that no tokenizer could fit', () => {
    const text = (tokens: number): string => 'abcdefgh'.repeat(2 * tokens)
    assert.equal(check({ messages: user(text(1000)) }), null)
    assert.deepEqual(check({ messages: user(text(1001)) }), exceeded)
    assert.equal(check({ messages: user(text(900)), max_tokens: 100 }), null)
    assert.deepEqual(check({ messages: user(text(901)), max_tokens: 100 }), exceeded)
    assert.deepEqual(check({ messages: user([{ type: 'text', text: text(1001) }]) }), exceeded)
  })

  test('is exceeded by less where servers have told how dense text is', () => {
    const seen = { bytes: 0, tokens: 0, long_bytes: 90_000, long_tokens: 30_000 }
    const learned = new Map([['sim-1', { ...sim, seen }]])
    const of = (characters: number) =>
      checkLine(
        lineOf({ model: 'sim-1', messages: user('abcdefghi'.repeat(characters / 9)) }),
        learned,
        '/v1/chat/completions',
      )?.code ?? null
    assert.equal(of(9 * 1000), null)
    assert.equal(of(9 * 1001), 'context_length_exceeded')
  })

  test('is left to the server where the count is unsure', () => {
    assert.equal(check({ messages: user('x'.repeat(8000)) }), null)
    const image = { type: 'image_url', image_url: { url: 'A'.repeat(100_000) } }
    assert.equal(check({ messages: user([image]) }), null)
    assert.equal(check({ max_tokens: 10, max_completion_tokens: 5000 }), null)
    // A run may be one token, an escape is one character, and what the model said before may be left out.
    assert.equal(check({ messages: user(' '.repeat(100_000)) }), null)
    const escaped = JSON.stringify({ model: 'sim-1', messages: user('*'.repeat(8000)) })
      .replace('********', '')
      .replaceAll('**', '\\u0bb5\\u0ba3')
    assert.equal(checkBody(escaped), null)
    const said = { role: 'assistant', content: 'abcdefgh'.repeat(3000) }
    assert.equal(check({ messages: [...user('Hi'), said, ...user('Go on')] }), null)
    assert.equal(check({ messages: [{ ...said, role: 'critic' }] }), null)
    assert.equal(check({ max_tokens: -1, max_completion_tokens: 5 }), null)
  })

  test('that is unknown refuses nothing', () => {
    assert.equal(check({ model: 'open', max_tokens: 1e9 }), null)
  })
})
