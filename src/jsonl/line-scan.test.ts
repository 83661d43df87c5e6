import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import type { ErrorCode } from '../domain/errors.ts'
import type { Span } from './json-scan.ts'
import { type InputLine, type LineFault, LineScanner } from './line-scan.ts'

fc.configureGlobal({ seed: 7 })

const scanner = new LineScanner()

function scan(text: string): InputLine | LineFault {
  const bytes = Buffer.from(`}\n${text}\n{`)
  return scanner.scan(bytes, 2, bytes.length - 2)
}

function accepted(text: string): InputLine {
  const line = scan(text)
  assert.ok(line.ok, line.ok ? '' : `${line.code}: ${line.message}`)
  return line
}

function refused(text: string): LineFault {
  const line = scan(text)
  assert.ok(!line.ok, `accepted: ${text}`)
  return line
}

function slice(line: InputLine, span: Span): string {
  return line.bytes.toString('utf8', span.start, span.end)
}

function numberOf({ fields }: InputLine['body'], name: string): number | null | undefined {
  return fields.get(name)?.number
}

function make(change: Record<string, unknown> = {}, body: Record<string, unknown> = {}): string {
  return JSON.stringify({
    custom_id: 'a',
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: 'sim-1', messages: [{ role: 'user', content: 'Hi' }], ...body },
    ...change,
  })
}

describe('a well-formed line', () => {
  test('tells its ids, and where its body lies to the byte', () => {
    const body =
      '{"model": "sim-1" ,"seed":9007199254740993, "x":1.0,"messages":[{"role":"user","content":"Grüße"}]}'
    const text = ` {"custom_id":"zeile-1","method":"POST", "url":"/v1/chat/completions", "body" : ${body} , "metadata":{"entity":"user:7","tags":"a,b"}}\t\r`
    const line = accepted(text)
    assert.equal(line.custom_id, 'zeile-1')
    assert.equal(line.entity, 'user:7')
    assert.deepEqual(line.metadata, { entity: 'user:7', tags: 'a,b' })
    assert.equal(slice(line, line.body.span), body)
    assert.equal(slice(line, line.body.messages), '[{"role":"user","content":"Grüße"}]')
    assert.equal(line.body.model, 'sim-1')
    assert.deepEqual(
      line.body.model_spans.map((span) => slice(line, span)),
      ['"sim-1"'],
    )
  })

  test('may lack metadata or hold null there', () => {
    for (const text of [make(), make({ metadata: null })]) {
      const line = accepted(text)
      assert.equal(line.metadata, null)
      assert.equal(line.entity, null)
    }
  })

  test('may hold keys that nobody knows, prototype names among them', () => {
    const line = accepted(
      `{"__proto__":{"custom_id":"evil"},"constructor":1,"toString":[],${make().slice(1)}`,
    )
    assert.equal(line.custom_id, 'a')
    const odd = accepted(make().replace('"model"', '"__proto__":{"model":"evil"},"model"'))
    assert.equal(odd.body.model, 'sim-1')
    const metadata = accepted(make({ metadata: JSON.parse('{"__proto__":"x","entity":"e"}') })).metadata
    assert.deepEqual(Object.entries(metadata ?? {}), [
      ['__proto__', 'x'],
      ['entity', 'e'],
    ])
  })

  test('may write its keys and values with escapes', () => {
    const line = accepted(
      '{"custom\\u005fid":"\\u00e9\\n\\ud83d\\ude00","m\\u0065thod":"P\\u004fST","url":"\\/v1\\/chat\\/completions","body":{"mod\\u0065l":"sim\\u002d1","messages":[]},"metadata":{"\\u0065ntity":"team\\/a"}}',
    )
    assert.equal(line.custom_id, 'é\n😀')
    assert.equal(line.custom_id_escaped, true)
    assert.equal(line.body.model, 'sim-1')
    assert.equal(line.entity, 'team/a')
    assert.equal(line.body.messages.kind, 'array')
  })

  test('is what its last duplicate keys say', () => {
    const line = accepted(
      '{"custom_id":7,"custom_id":"b","method":"GET","method":"POST","url":"","url":"/v1/chat/completions",' +
        '"body":{"model":"x","stream":true,"max_tokens":1,"tools":7},"body":{"model":"y","model":"z","messages":7,"messages":[{"role":"user","content":"one","content":"twelve"}]},' +
        '"metadata":{"entity":"e","a":1},"metadata":{"entity":7,"entity":"f"}}',
    )
    assert.equal(line.custom_id, 'b')
    assert.equal(line.body.model, 'z')
    assert.deepEqual(
      line.body.model_spans.map((span) => slice(line, span)),
      ['"y"', '"z"'],
    )
    assert.equal(numberOf(line.body, 'max_tokens'), null)
    assert.equal(line.body.fields.get('tools')?.kind, null)
    assert.equal(line.body.messages.count, 1)
    assert.equal(line.body.messages.text_bytes, 6)
    assert.equal(line.entity, 'f')
    refused(make().replace(/}$/, ',"custom_id":null}'))
  })

  test('leaves nothing behind for the next', () => {
    accepted(
      make(
        { metadata: { entity: 'e' } },
        { max_tokens: 5, n: 2, temperature: 1, tools: [1], response_format: { type: 'text' } },
      ),
    )
    const { body, entity } = accepted(make())
    assert.equal(entity, null)
    assert.deepEqual(
      [
        numberOf(body, 'max_tokens'),
        numberOf(body, 'max_completion_tokens'),
        numberOf(body, 'n'),
        numberOf(body, 'temperature'),
        body.found.map(({ name }) => name),
        body.hasOtherTools,
      ],
      [null, null, null, null, ['model', 'messages'], false],
    )
    const bare = accepted(make({ body: {} }))
    assert.deepEqual(
      [bare.body.model, bare.body.model_spans.length, bare.body.messages.kind],
      [null, 0, null],
    )
  })

  test('shows the same facts as JSON.parse', () => {
    const number = fc.oneof(
      fc.nat({ max: 5000 }),
      fc.constantFrom(null, 'x', 1.5, -1, 1e30, true, [], undefined),
    )
    const shape = fc.record({
      model: fc.oneof(fc.string(), fc.constantFrom('sim-1', 'sim-2', null, 3)),
      max_tokens: number,
      max_completion_tokens: number,
      n: number,
      temperature: number,
      extra: fc.jsonValue(),
      messages: fc.array(fc.record({ role: fc.constant('user'), content: fc.string({ unit: 'binary' }) })),
    })
    const numberField = (value: unknown): number | null => {
      if (value === undefined || value === null) return null
      return typeof value === 'number' ? value : Number.NaN
    }
    fc.assert(
      fc.property(
        shape,
        fc.string({ minLength: 1, maxLength: 50 }),
        fc.string(),
        (body, custom_id, entity) => {
          const line = accepted(make({ custom_id, body, metadata: { entity } }))
          assert.equal(line.custom_id, custom_id)
          assert.equal(line.entity, entity.trim() || null)
          assert.equal(line.entity_is_blank, entity.trim() === '')
          assert.equal(line.body.model, typeof body.model === 'string' ? body.model : null)
          assert.equal(numberOf(line.body, 'max_tokens'), numberField(body.max_tokens))
          assert.equal(numberOf(line.body, 'max_completion_tokens'), numberField(body.max_completion_tokens))
          assert.equal(numberOf(line.body, 'n'), numberField(body.n))
          assert.equal(numberOf(line.body, 'temperature'), numberField(body.temperature))
          assert.equal(line.body.messages.count, body.messages.length)
          assert.equal(slice(line, line.body.span), JSON.stringify(body))
          const text_bytes = body.messages.reduce(
            (sum, m) => sum + Buffer.byteLength(JSON.stringify(m.content)) - 2,
            0,
          )
          assert.equal(line.body.messages.text_bytes, text_bytes)
        },
      ),
      { numRuns: 300 },
    )
  })
})

describe('messages', () => {
  const problem = (message: unknown): unknown => {
    const { messages } = accepted(make({}, { messages: [{ role: 'user', content: 'ok' }, message] })).body
    assert.equal(messages.problem_index, messages.problem === null ? -1 : 1)
    return messages.problem
  }

  test('are known by kind and count', () => {
    const facts = (messages: unknown): unknown[] => {
      const found = accepted(make({}, { messages })).body.messages
      return [found.kind, found.count]
    }
    assert.deepEqual(facts(undefined), [null, 0])
    assert.deepEqual(facts('x'), ['string', 0])
    assert.deepEqual(facts(null), ['null', 0])
    assert.deepEqual(facts([]), ['array', 0])
    assert.deepEqual(facts([{ role: 'user', content: '' }, 1]), ['array', 2])
  })

  test('that are right have no problem', () => {
    for (const role of ['system', 'developer', 'user', 'assistant']) {
      assert.equal(problem({ role, content: 'x' }), null)
      assert.equal(problem({ role, content: [{ type: 'text', text: 'x' }] }), null)
    }
    assert.equal(problem({ role: 'assistant', content: null, tool_calls: [] }), null)
    assert.equal(
      problem({ role: 'assistant', tool_calls: [{ id: 'c', type: 'function', function: {} }] }),
      null,
    )
    assert.equal(problem({ role: 'tool', content: '42', tool_call_id: 'c' }), null)
    assert.equal(problem({ content: '42', name: 'f', role: 'function' }), null)
  })

  test('that cannot be right have one', () => {
    assert.equal(problem('hi'), 'not_an_object')
    assert.equal(problem({ content: 'x' }), 'role_missing')
    assert.equal(problem({ role: 1, content: 'x' }), 'role_missing')
  })

  test('may be many: they lie beside each other, not inside', () => {
    const many = Array.from({ length: 300 }, () => ({ role: 'user', content: [{ type: 'text', text: 'x' }] }))
    assert.equal(accepted(make({}, { messages: many })).body.messages.count, 300)
  })

  test('keep text and media apart', () => {
    const image = { type: 'image_url', image_url: { url: `data:image/png;base64,${'A'.repeat(1000)}` } }
    const { messages } = accepted(
      make({}, { messages: [{ role: 'user', content: [{ type: 'text', text: 'What is this?' }, image] }] }),
    ).body
    assert.equal(messages.text_bytes, 13)
    assert.equal(messages.media_parts, 1)
    assert.equal(messages.media_bytes, JSON.stringify(image).length)
    const text = '[{"type":"text","text":"four"},{"type":"image_url"}]'
    const twice = accepted(make().replace('"content":"Hi"', `"content":${text},"content":${text}`)).body
      .messages
    assert.deepEqual([twice.text_bytes, twice.media_parts], [4, 1])
  })
})

test('an endpoint goes by its path, by its name without a version, and pairs by any address with their name', () => {
  for (const [url, path] of [
    ['/v1/chat/completions', '/v1/chat/completions'],
    ['/chat/completions', '/v1/chat/completions'],
    ['/embeddings', '/v1/embeddings'],
    ['/score', '/v1/score'],
    ['/v2/rerank', '/v1/rerank'],
    ['/api/v1/rerank', '/v1/rerank'],
  ])
    assert.equal(accepted(make({ url })).url, path)
})

describe('a line is refused', () => {
  const cases: [string, string, ErrorCode, string | undefined][] = [
    ['that is no object', '[1]', 'not_an_object', undefined],
    ['that is a bare string', '"x"', 'not_an_object', undefined],
    ['that is two objects', `${make()} ${make()}`, 'not_an_object', undefined],
    ['with a trailing comma', `${make()},`, 'not_an_object', undefined],
    ['that is no JSON', 'hello', 'invalid_json', undefined],
    ['that is cut short', make().slice(0, -3), 'invalid_json', undefined],
    ['with broken JSON deep in its body', make().replace('"Hi"', 'Hi'), 'invalid_json', undefined],
    [
      'that nests too deeply',
      make({}, { x: JSON.parse('['.repeat(99) + ']'.repeat(99)) }),
      'nesting_too_deep',
      undefined,
    ],
    ['without custom_id', make({ custom_id: undefined }), 'missing_field', 'custom_id'],
    ['with a number as custom_id', make({ custom_id: 1 }), 'invalid_custom_id', 'custom_id'],
    ['with an empty custom_id', make({ custom_id: '' }), 'invalid_custom_id', 'custom_id'],
    [
      'with a custom_id of 513 characters',
      make({ custom_id: 'x'.repeat(513) }),
      'invalid_custom_id',
      'custom_id',
    ],
    ['with U+0000 in its custom_id', make({ custom_id: 'a\0' }), 'invalid_custom_id', 'custom_id'],
    ['with half a pair in its custom_id', make({ custom_id: 'a\ud800' }), 'invalid_custom_id', 'custom_id'],
    ['with U+0000 in its entity', make({ metadata: { entity: 'a\0' } }), 'invalid_metadata', 'metadata'],
    ['with half a pair in its tags', make({ metadata: { tags: '\udc00' } }), 'invalid_metadata', 'metadata'],
    ['with U+0000 in a key', make({ metadata: { 'a\0': 'b' } }), 'invalid_metadata', 'metadata'],
    ['with U+0000 in its model', make({}, { model: 'm\0' }), 'invalid_body', 'body.model'],
    ['without method', make({ method: undefined }), 'missing_field', 'method'],
    ['with another method', make({ method: 'GET' }), 'invalid_method', 'method'],
    ['with a method in lower case', make({ method: 'post' }), 'invalid_method', 'method'],
    ['without url', make({ url: undefined }), 'missing_field', 'url'],
    ['with another url', make({ url: '/v1/moderations' }), 'invalid_url', 'url'],
    ['with a url without a slash', make({ url: 'chat/completions' }), 'invalid_url', 'url'],
    ['with the url of another version', make({ url: '/v2/chat/completions' }), 'invalid_url', 'url'],
    ['with a url that is no string', make({ url: ['/v1/chat/completions'] }), 'invalid_url', 'url'],
    ['without body', make({ body: undefined }), 'missing_field', 'body'],
    ['with a string as body', make({ body: '{}' }), 'invalid_body', 'body'],
    ['with null as body', make({ body: null }), 'invalid_body', 'body'],
    ['with an array as metadata', make({ metadata: [] }), 'invalid_metadata', 'metadata'],
    ['with a number in metadata', make({ metadata: { a: 1 } }), 'invalid_metadata', 'metadata'],
    [
      'with a long key in metadata',
      make({ metadata: { ['k'.repeat(65)]: '' } }),
      'invalid_metadata',
      'metadata',
    ],
    [
      'with a long value in metadata',
      make({ metadata: { k: 'v'.repeat(513) } }),
      'invalid_metadata',
      'metadata',
    ],
    ['that streams', make({}, { stream: true }), 'streaming_not_supported', 'body.stream'],
    ['that streams by a number', make({}, { stream: 0 }), 'streaming_not_supported', 'body.stream'],
    ['that streams by a text', make({}, { stream: 'false' }), 'streaming_not_supported', 'body.stream'],
    [
      'with stream options',
      make({}, { stream: false, stream_options: {} }),
      'streaming_not_supported',
      'body.stream_options',
    ],
  ]
  for (const [name, text, code, param] of cases) {
    test(name, () => {
      const fault = refused(text)
      assert.equal(fault.code, code, fault.message)
      assert.equal(fault.param, param)
    })
  }

  test('with more than 16 metadata pairs, counting a key once', () => {
    const pairs = (count: number): Record<string, string> =>
      Object.fromEntries(Array.from({ length: count }, (_, i) => [`k${i}`, 'v']))
    accepted(make({ metadata: pairs(16) }))
    assert.equal(refused(make({ metadata: pairs(17) })).code, 'invalid_metadata')
    accepted(make({ metadata: pairs(16) }).replace('"k3":"v"', '"k3":1,"k3":"v"'))
  })

  test('at a column counted in characters', () => {
    assert.equal(refused('{"größe": "\\x"}').message, 'Column 13: this character cannot follow a backslash.')
    assert.equal(refused('{"a":1').message, 'Column 7: the line ends here: expected "," or "}".')
  })
})

test('lengths are counted in characters, not in bytes or escapes', () => {
  accepted(make({ custom_id: '😀'.repeat(512), metadata: { ['ü'.repeat(64)]: '漢'.repeat(512) } }))
  accepted(make({ custom_id: 'x'.repeat(512) }).replaceAll('x', '\\u0078'))
  refused(make({ custom_id: '😀'.repeat(513) }))
})

test('a body of JSON that other parsers dislike is left alone', () => {
  const body =
    '{"model":"sim-1","a":1e2,"b":1.0,"c":123456789012345678901234567890,"d":"\\ud800","e":1,"e":2}'
  const line = accepted(make().replace(/"body":\{.*\}\}/, `"body":${body}}`))
  assert.equal(slice(line, line.body.span), body)
})

describe('a line of another endpoint', () => {
  const embedding = { model: 'e', input: ['grüße', 'b'], dimensions: 3 }

  test('is read as its url says, wherever in the line that stands', () => {
    for (const text of [
      JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/embeddings', body: embedding }),
      JSON.stringify({ custom_id: 'a', method: 'POST', body: embedding, url: '/v1/embeddings' }),
    ]) {
      accepted(make())
      const { url, body, custom_id } = accepted(text)
      assert.equal(url, '/v1/embeddings')
      assert.equal(custom_id, 'a')
      assert.equal(body.model, 'e')
      assert.equal(numberOf(body, 'dimensions'), 3)
      const texts = body.fields.get('input')?.texts
      assert.deepEqual([texts?.inputs, texts?.text_bytes, texts?.problem], [2, 8, null])
      assert.equal(accepted(make()).url, '/v1/chat/completions')
    }
  })

  test('has texts, lists of token IDs, or documents', () => {
    const input = (value: unknown) => {
      const text = make({ url: '/v1/embeddings' }, { messages: undefined, input: value })
      const { inputs, text_bytes, token_ids, problem, problem_index } =
        accepted(text).body.fields.get('input')!.texts!
      return [inputs, text_bytes, token_ids, problem, problem_index]
    }
    assert.deepEqual(input('abc'), [1, 3, 0, null, -1])
    assert.deepEqual(input([1, 2, 3]), [1, 0, 3, null, -1])
    assert.deepEqual(input([[1], [2, 3]]), [2, 0, 3, null, -1])
    assert.deepEqual(input([]).slice(3), ['empty', -1])
    assert.deepEqual(input(['a', 1]).slice(3), ['wrong_type', -1])
    assert.deepEqual(input(['a', { text: 'b' }]).slice(3), ['wrong_type', 1])
    assert.deepEqual(input([['a']]).slice(3), ['wrong_type', 0])
    assert.deepEqual(input(null).slice(3), ['wrong_type', -1])
    const documents = ['ab', { text: 'cd' }, { content: [{ type: 'text', text: 'e' }, { image_url: 'x' }] }]
    const rerank = make({ url: '/v1/rerank' }, { messages: undefined, query: 'q', documents })
    const found = accepted(rerank).body.fields.get('documents')!.texts!
    assert.deepEqual([found.inputs, found.text_bytes, found.media_parts, found.problem], [3, 5, 1, null])
  })
})
