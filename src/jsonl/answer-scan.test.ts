import assert from 'node:assert/strict'
import test from 'node:test'
import type { EndpointPath } from '../domain/endpoint.ts'
import { AnswerScanner } from './answer-scan.ts'

// Shared by all tests: the scan of one answer must not affect the next.
const scanner = new AnswerScanner()
const scan = (text: string) => scanner.scan(Buffer.from(text), '/v1/chat/completions')
const CHOICES = '"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]'

test('usage is read where it counts properly, a missing total being the sum', () => {
  const cases: [usage: string, expected: object | null][] = [
    [
      '{"prompt_tokens":3,"completion_tokens":4,"total_tokens":9}',
      { prompt_tokens: 3, completion_tokens: 4, total_tokens: 9 },
    ],
    [
      '{"completion_tokens":4,"prompt_tokens":3}',
      { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 },
    ],
    [
      '{"prompt_tokens":3,"completion_tokens":1e1}',
      { prompt_tokens: 3, completion_tokens: 10, total_tokens: 13 },
    ],
    ['{"prompt_tokens":3,"completion_tokens":-1}', null],
    ['{"prompt_tokens":3,"completion_tokens":1.5}', null],
    ['{"prompt_tokens":"3","completion_tokens":1}', null],
    ['{"prompt_tokens":3}', null],
    ['{"prompt_tokens":9007199254740991,"completion_tokens":1}', null],
    ['{"prompt_tokens":3,"completion_tokens":4294967295}', null],
    [
      '{"prompt_tokens":3,"completion_tokens":4,"total_tokens":null}',
      { prompt_tokens: 3, completion_tokens: 4, total_tokens: 7 },
    ],
    ['{"prompt_tokens":3,"completion_tokens":4,"total_tokens":9007199254740991}', null],
    ['{"prompt_tokens":3,"completion_tokens":4,"total_tokens":-7}', null],
    ['{"prompt_tokens":3,"completion_tokens":4,"total_tokens":"7"}', null],
    ['{"prompt_tokens":NaN,"completion_tokens":4}'.replace('NaN', '1e999'), null],
    ['null', null],
    ['[1]', null],
  ]
  for (const [usage, expected] of cases) {
    assert.deepEqual(scan(`{${CHOICES},"usage":${usage}}`)?.usage, expected, usage)
    assert.deepEqual(scan(`{"usage":${usage},${CHOICES}}`)?.usage, expected, usage)
  }
  assert.equal(scan(`{${CHOICES}}`)?.usage, null)
})

test('of a member given twice the last counts, and a name may be written with escapes', () => {
  const usage = '{"prompt_tokens":1,"completion_tokens":1}'
  assert.equal(scan(`{${CHOICES},"usage":${usage},"usage":null}`)?.usage, null)
  assert.equal(scan(`{${CHOICES},"us\\u0061ge":${usage}}`)?.usage?.total_tokens, 2)
  assert.equal(scan(`{"choices":[],${CHOICES}}`) === null, false)
  assert.equal(scan(`{${CHOICES},"choices":[]}`), null)
})

test('the length of the messages is that of all choices', () => {
  const one = '{"content":"hi"}'
  assert.equal(scan(`{${CHOICES}}`)?.generated_bytes, one.length)
  const three = `{"choices":[{"message":${one}},{"message":${one}},{"message":null,"message":{"role":"a"}}]}`
  assert.equal(scan(three)?.generated_bytes, 2 * one.length)
})

test('an answer that says nothing has generated nothing', () => {
  const generated = (endpoint: EndpointPath, text: string): number | undefined =>
    scanner.scan(Buffer.from(text), endpoint)?.generated_bytes
  const empty = '{"role":"assistant","content":"","refusal":null,"tool_calls":[],"audio":null}'
  assert.equal(generated('/v1/chat/completions', `{"choices":[{"message":${empty}}]}`), 0)
  for (const message of [
    '{"content":null,"tool_calls":[{}]}',
    '{"content":"","refusal":"No."}',
    '{"content":null,"reasoning_content":"hm"}',
  ])
    assert.equal(generated('/v1/chat/completions', `{"choices":[{"message":${message}}]}`), message.length)
  assert.equal(generated('/v1/completions', '{"choices":[{"text":""},{"text":"a"}]}'), '"a"'.length)
  assert.equal(generated('/v1/messages', '{"content":[ ]}'), 0)
  assert.equal(generated('/v1/responses', '{"status":"completed","output":[]}'), 0)
  assert.equal(generated('/v1/responses', '{"status":"completed","output":[{}]}'), '[{}]'.length)
})

test('what is no completion, or breaks off, is not taken for one', () => {
  const answers = [
    '',
    'null',
    '[]',
    '{}',
    '{"choices":null}',
    '{"choices":{}}',
    '{"choices":[]}',
    '{"choices":[1]}',
    '{"choices":[{}]}',
    '{"choices":[{"message":null}]}',
    '{"choices":[{"message":{}}]}',
    '{"choices":[{"message":[]}]}',
    '{"choices":[{"message":"hi"}]}',
    '{"choices":[{"message":{"content":7}}]}',
    '{"choices":[{"message":{"content":{}}}]}',
    '{"choices":[{"message":{"role":1,"content":"hi"}}]}',
    '{"choices":[{"message":{"content":null,"tool_calls":{}}}]}',
    `{"choices":[{"delta":{"content":"hi"}}],"object":"chat.completion.chunk"}`,
    '{"choices":{"0":{"message":{"content":"hi"}}}}',
    '{"choices":[{"message":{"role":"a"}},{"text":"x"}]}',
    '{"choices":[{"message":{"role":"a"},"finish_reason":"abort"}]}',
    '{"choices":[{"finish_reason":"stop","message":{"role":"a"},"finish_reason":"error"}]}',
    `{${CHOICES}`,
    `{${CHOICES}} x`,
    `{${CHOICES},}`,
    `{${CHOICES},"a":01}`,
    `{${CHOICES},"a":"\t"}`,
  ]
  for (const text of answers) assert.equal(scan(text), null, text)
})

test('a finish_reason is a string or null', () => {
  const cases: [reason: string, accepted: boolean][] = [
    ['null', true],
    ['"length"', true],
    ['"ab\\u006frt"', false],
    ['{"type":"stop"}', false],
    ['7', false],
    ['["stop"]', false],
    ['true', false],
  ]
  for (const [reason, accepted] of cases) {
    const found = scan(`{"choices":[{"message":{"role":"a"},"finish_reason":${reason}}]}`)
    assert.equal(found !== null, accepted, reason)
  }
})

test('the entries of an answer are counted, with the places that they name', () => {
  const choice = (index: string): string => `{"index":${index},"message":{"role":"a"}}`
  const facts = (...indexes: string[]): unknown => {
    const { count, index_max, isIndexRepeated } = scan(`{"choices":[${indexes.map(choice)}]}`)!.entries
    return [count, index_max, isIndexRepeated]
  }
  assert.deepEqual(facts('1', '0'), [2, 1, false])
  assert.deepEqual(facts('null', 'null'), [2, -1, false])
  assert.deepEqual(facts('0', '0', '0'), [3, 0, true])
  assert.deepEqual(facts('2', '0', '1'), [3, 2, false])
  assert.deepEqual(facts('1', '0', '1'), [3, 1, true])
  assert.deepEqual(facts('7', '0', '7'), [3, 7, true])
  for (const index of ['"0"', '-1', '0.5', '{}'])
    assert.deepEqual(facts(index), [1, Number.POSITIVE_INFINITY, false])
  assert.equal(
    scan(`{"choices":[${choice('0')}],"choices":[${choice('0')}]}`)?.entries.isIndexRepeated,
    false,
  )
})

test('of the tokens, those of a cache and of thinking are told', () => {
  const details = (usage: string): unknown[] => {
    const found = scan(`{${CHOICES},"usage":${usage}}`)?.usage
    return [found?.cached_tokens, found?.reasoning_tokens]
  }
  const counts = '"prompt_tokens":9,"completion_tokens":5'
  const cached = (text: string): string => `"prompt_tokens_details":${text}`
  const reasoning = (text: string): string => `"completion_tokens_details":${text}`
  assert.deepEqual(
    details(
      `{${cached('{"cached_tokens":4,"audio_tokens":1}')},${counts},${reasoning('{"reasoning_tokens":3}')}}`,
    ),
    [4, 3],
  )
  for (const text of ['null', '{}', '7', '[1]', '{"cached_tokens":-1}', '{"cached_tokens":null}'])
    assert.deepEqual(details(`{${counts},${cached(text)},${reasoning(text)}}`), [undefined, undefined])
  const responses = scanner.scan(
    Buffer.from(
      `{"status":"completed","output":[{}],"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":2},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":1}}}`,
    ),
    '/v1/responses',
  )
  assert.deepEqual([responses?.usage?.cached_tokens, responses?.usage?.reasoning_tokens], [2, 1])
})

test('the prompt of a message is its new tokens and those of the cache, read and written', () => {
  const usageOf = (usage: string) =>
    scanner.scan(Buffer.from(`{"content":[{"type":"text","text":"a"}],"usage":${usage}}`), '/v1/messages')
  const own = '"input_tokens":3,"output_tokens":5'
  const cache = '"cache_read_input_tokens":20,"cache_creation_input_tokens":100'
  assert.deepEqual(usageOf(`{${own},${cache},"output_tokens_details":{"thinking_tokens":4}}`)?.usage, {
    prompt_tokens: 123,
    completion_tokens: 5,
    total_tokens: 128,
    cached_tokens: 20,
    cache_write_tokens: 100,
    reasoning_tokens: 4,
  })
  assert.deepEqual(usageOf(`{"cache_read_input_tokens":null,${own}}`)?.usage, {
    prompt_tokens: 3,
    completion_tokens: 5,
    total_tokens: 8,
  })
  for (const broken of ['-1', '"7"', '1.5', '{}'])
    assert.equal(usageOf(`{${own},"cache_creation_input_tokens":${broken}}`)?.isUsageRejected, true, broken)
})

test('usage is read as each provider reports it', () => {
  const chat = (reported: object) => scan(`{${CHOICES},"usage":${JSON.stringify(reported)}}`)
  const cases: [provider: string, reported: object, expected: number[], isRejected?: true][] = [
    [
      'OpenAI',
      { prompt_tokens: 100, completion_tokens: 334, total_tokens: 434, ...thought(325) },
      [100, 334, 434, 0, 325],
    ],
    [
      'xAI',
      { prompt_tokens: 100, completion_tokens: 9, total_tokens: 434, ...thought(325) },
      [100, 334, 434, 0, 325],
      true,
    ],
    [
      'xAI without a total',
      { prompt_tokens: 100, completion_tokens: 9, ...thought(325) },
      [100, 334, 434, 0, 325],
      true,
    ],
    [
      'a proxy before xAI that adds up itself',
      { prompt_tokens: 100, completion_tokens: 9, total_tokens: 109, ...thought(325) },
      [100, 334, 434, 0, 325],
      true,
    ],
    [
      'xAI with a longer answer',
      { prompt_tokens: 100, completion_tokens: 400, total_tokens: 825, ...thought(325) },
      [100, 725, 825, 0, 325],
      true,
    ],
    [
      'SGLang',
      { prompt_tokens: 100, completion_tokens: 50, total_tokens: 150, reasoning_tokens: 40 },
      [100, 50, 150, 0, 40],
    ],
    ['Gemini', { prompt_tokens: 10, completion_tokens: 20, total_tokens: 300 }, [10, 20, 300]],
    [
      'a total that is too small',
      { prompt_tokens: 10, completion_tokens: 20, total_tokens: 3 },
      [10, 20, 30],
      true,
    ],
    [
      'Moonshot, Together',
      { prompt_tokens: 100, completion_tokens: 5, total_tokens: 105, cached_tokens: 60 },
      [100, 5, 105, 60],
    ],
    [
      'DeepSeek',
      {
        prompt_tokens: 100,
        completion_tokens: 5,
        total_tokens: 105,
        prompt_cache_hit_tokens: 60,
        prompt_cache_miss_tokens: 40,
      },
      [100, 5, 105, 60],
    ],
    [
      'LiteLLM before Anthropic',
      {
        prompt_tokens: 100,
        completion_tokens: 5,
        total_tokens: 105,
        prompt_tokens_details: { cached_tokens: 60 },
        cache_read_input_tokens: 60,
      },
      [100, 5, 105, 60],
    ],
    [
      'a proxy that leaves the cache out of the prompt',
      {
        prompt_tokens: 3,
        completion_tokens: 5,
        total_tokens: 8,
        prompt_tokens_details: { cached_tokens: 60 },
      },
      [63, 5, 68, 60],
      true,
    ],
    [
      'a cache beside the prompt, by the total',
      { prompt_tokens: 100, completion_tokens: 5, total_tokens: 165, cache_read_input_tokens: 60 },
      [160, 5, 165, 60],
      true,
    ],
    [
      'both beside the rest',
      { prompt_tokens: 100, completion_tokens: 5, total_tokens: 172, cached_tokens: 60, ...thought(7) },
      [160, 12, 172, 60, 7],
      true,
    ],
    ['zeros', { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }, [0, 0, 0]],
  ]
  for (const [
    provider,
    reported,
    [prompt, completion, total, cached = 0, reasoning = 0],
    isRejected = false,
  ] of cases) {
    const found = chat(reported)
    const {
      prompt_tokens,
      completion_tokens,
      total_tokens,
      cached_tokens = 0,
      reasoning_tokens = 0,
    } = found?.usage ?? {}
    assert.deepEqual(
      [
        prompt_tokens,
        completion_tokens,
        total_tokens,
        cached_tokens,
        reasoning_tokens,
        found?.isUsageRejected,
      ],
      [prompt, completion, total, cached, reasoning, isRejected],
      provider,
    )
  }
  // SGLang adds up the cached tokens of all choices.
  const two = '"choices":[{"message":{"content":"a"}},{"message":{"content":"b"}}]'
  const usage =
    '{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":18}}'
  assert.deepEqual(scan(`{${two},"usage":${usage}}`)?.usage, {
    prompt_tokens: 10,
    completion_tokens: 2,
    total_tokens: 12,
    cached_tokens: 10,
  })
})

test('what a provider wrote to its cache is read under each of its names, by how long it is kept', () => {
  const kept = { ephemeral_5m_input_tokens: 30, ephemeral_1h_input_tokens: 20 }
  const cases: [provider: string, reported: object, written: number, hour?: number][] = [
    ['OpenAI', { prompt_tokens_details: { cached_tokens: 5, cache_write_tokens: 50 } }, 50],
    [
      'LiteLLM',
      {
        cache_creation_input_tokens: 50,
        prompt_tokens_details: { cache_creation_tokens: 50, cache_creation_token_details: kept },
      },
      50,
      20,
    ],
    [
      'DashScope',
      {
        prompt_tokens_details: {
          cache_creation_input_tokens: 50,
          cache_creation: { ephemeral_5m_input_tokens: 50 },
        },
      },
      50,
    ],
    ['the split alone', { cache_creation: kept }, 50, 20],
    [
      'more than the prompt, beside a total that has no more',
      { total_tokens: 105, cache_creation_input_tokens: 50, cached_tokens: 90 },
      50,
    ],
  ]
  for (const [provider, reported, written, hour] of cases) {
    const usage = JSON.stringify({ prompt_tokens: 100, completion_tokens: 5, ...reported })
    const found = scan(`{${CHOICES},"usage":${usage}}`)?.usage
    assert.deepEqual([found?.cache_write_tokens, found?.cache_write_1h_tokens], [written, hour], provider)
  }
  const message = `{"content":[],"usage":${JSON.stringify({ input_tokens: 3, output_tokens: 5, cache_creation_input_tokens: 50, cache_creation: kept })}}`
  assert.deepEqual(scanner.scan(Buffer.from(message), '/v1/messages')?.usage, {
    prompt_tokens: 53,
    completion_tokens: 5,
    total_tokens: 58,
    cache_write_tokens: 50,
    cache_write_1h_tokens: 20,
  })
})

function thought(reasoning_tokens: number): object {
  return { completion_tokens_details: { reasoning_tokens } }
}

test('why a message ended is told in words that are known', () => {
  const ends = (stop: string) =>
    scanner.scan(Buffer.from(`{"content":[],"stop_reason":${stop}}`), '/v1/messages')
  for (const reason of ['end_turn', 'max_tokens', 'tool_use', 'refusal'])
    assert.equal(ends(`"${reason}"`)?.stop_reason, reason)
  assert.equal(ends('"something new"')?.stop_reason, null)
  assert.equal(ends('null')?.stop_reason, null)
  assert.equal(ends('"abort"'), null)
  assert.equal(scanner.scan(Buffer.from('{"type":"error","error":{}}'), '/v1/messages'), null)
})

test('a usage that is no set of counts is named, and its place is where another goes', () => {
  for (const usage of [
    '{"prompt_tokens":-5,"completion_tokens":1}',
    '{}',
    '"12"',
    '[{"prompt_tokens":1}]',
    '7',
  ]) {
    const text = `{${CHOICES},"usage":${usage},"id":"x"}`
    const found = scan(text)
    assert.equal(found?.usage, null)
    assert.equal(found?.isUsageRejected, true)
    assert.equal(found?.cost.kind, 'usage')
    assert.equal(text.slice(found?.cost.start, found?.cost.end), usage)
  }
  for (const text of [`{${CHOICES}}`, `{${CHOICES},"usage":null}`, `{${CHOICES},"usage":{},"usage":null}`]) {
    assert.equal(scan(text)?.isUsageRejected, false, text)
  }
  const good = scan(`{${CHOICES},"usage":{"prompt_tokens":1,"completion_tokens":2,"cost_usd":9}}`)
  assert.deepEqual([good?.isUsageRejected, good?.cost.kind], [false, 'cost'])
})

test('what the model said is marked off from what the server adds', () => {
  const text = `{"id":"x",${CHOICES} ,"usage":null}`
  const { start, end } = scan(text)?.content ?? { start: 0, end: 0 }
  assert.equal(`"choices":${text.slice(start, end)}`, CHOICES)
})

test('the answers of each endpoint have their own content and usage', () => {
  const tokens = (prompt_tokens: number, completion_tokens: number) => ({
    prompt_tokens,
    completion_tokens,
    total_tokens: prompt_tokens + completion_tokens,
  })
  const cases: [EndpointPath, string, ReturnType<typeof tokens> | null | 'no answer'][] = [
    [
      '/v1/completions',
      '{"choices":[{"text":"a"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}',
      tokens(1, 2),
    ],
    ['/v1/completions', '{"choices":[{"message":{"content":"a"}}]}', 'no answer'],
    [
      '/v1/embeddings',
      '{"data":[{"index":0,"embedding":[1,-2.5e3]}],"usage":{"prompt_tokens":4,"total_tokens":4}}',
      tokens(4, 0),
    ],
    ['/v1/embeddings', '{"data":[{"index":0,"embedding":"AA"}],"usage":{"total_tokens":4}}', tokens(4, 0)],
    ['/v1/embeddings', '{"data":[{"index":0,"embedding":"AA"}]}', null],
    ['/v1/embeddings', '{"data":[{"index":0,"embedding":null}]}', 'no answer'],
    ['/v1/embeddings', '{"data":[{"embedding":[1]},{"object":"embedding"}]}', 'no answer'],
    ['/v1/embeddings', '{"data":[]}', 'no answer'],
    ['/v1/embeddings', '{"data":[{"embedding":[1,]}]}', 'no answer'],
    [
      '/v1/responses',
      '{"status":"completed","output":[],"usage":{"input_tokens":3,"output_tokens":5}}',
      tokens(3, 5),
    ],
    ['/v1/responses', '{"status":"failed","output":[],"usage":null}', 'no answer'],
    ['/v1/responses', '{"status":"in_progress","output":[]}', 'no answer'],
    [
      '/v1/rerank',
      '{"results":[{"index":1,"relevance_score":0.5}],"usage":{"total_tokens":9}}',
      tokens(9, 0),
    ],
    ['/v1/rerank', '{"results":[{"index":1}]}', 'no answer'],
    [
      '/v1/score',
      '{"data":[{"index":0,"score":-1}],"usage":{"prompt_tokens":2,"total_tokens":2}}',
      tokens(2, 0),
    ],
  ]
  for (const [endpoint, text, usage] of cases) {
    const found = scanner.scan(Buffer.from(text), endpoint)
    assert.deepEqual(found === null ? 'no answer' : found.usage, usage, text)
  }
})
