import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import type { ErrorCode } from '../domain/errors.ts'
import { type IdHash, SeededHash } from '../jsonl/custom-ids.ts'
import {
  ERRORS_COUNTED_MAX,
  ERRORS_LISTED_MAX,
  type ValidateOptions,
  type Validation,
  validateContent,
} from './validation.ts'

fc.configureGlobal({ seed: 7 })

const LIMITS = { lines_max: 100_000, line_bytes_max: 10_000 }

function lineOf(custom_id: unknown, change: Record<string, unknown> = {}): string {
  return JSON.stringify({
    custom_id,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: 'sim-1', messages: [{ role: 'user', content: 'Hi' }], max_tokens: 5 },
    ...change,
  })
}

async function* blocksOf(bytes: Buffer, sizes: number[] = []): AsyncGenerator<Buffer> {
  let at = 0
  for (const size of [...sizes, bytes.length]) {
    yield bytes.subarray(at, at + size)
    at += size
  }
}

function validate(text: string | Buffer, options?: ValidateOptions, limits = LIMITS): Promise<Validation> {
  return validateContent(() => blocksOf(Buffer.from(text)), limits, options)
}

type Refused = Extract<Validation, { ok: false }>
type Accepted = Extract<Validation, { ok: true }>

async function accepted(text: string | Buffer): Promise<Accepted> {
  const validation = await validate(text)
  assert.ok(validation.ok, validation.ok ? '' : validation.details)
  return validation
}

async function refused(text: string | Buffer, options?: ValidateOptions, limits = LIMITS): Promise<Refused> {
  const validation = await validate(text, options, limits)
  assert.ok(!validation.ok)
  return validation
}

/** A hash with two values only, so that nearly every line collides. */
const weak: IdHash & { lo: number } = {
  lo: 0,
  hi: 0,
  read(_bytes, start, end) {
    this.lo = (end - start) % 2
  },
}

test('an entity counts without the whitespace around it, and a blank one is refused with its line', async () => {
  const { index } = await accepted(
    [' user:42 ', 'user:42', '\u00a0user:42\t']
      .map((entity, i) => lineOf(`${i}`, { metadata: { entity } }))
      .join('\n'),
  )
  assert.deepEqual(
    index.groups.map(({ entity, lines }) => [entity, lines]),
    [['user:42', 3]],
  )
  for (const entity of ['', '  ', '\u3000']) {
    const { errors } = await refused(`${lineOf('a')}\n${lineOf('b', { metadata: { entity } })}`)
    const [{ line, code, param }] = [errors[0]!]
    assert.deepEqual([line, code, param], [2, 'invalid_metadata', 'metadata.entity'])
  }
})

describe('a good file', () => {
  test('is counted and indexed', async () => {
    const text = `${lineOf('a')}\n\n${lineOf('b', { metadata: { entity: 'user:1' } })}\r\n${lineOf('c')}`
    const { bytes, line_count, index } = await accepted(text)
    assert.equal(bytes, text.length)
    assert.equal(line_count, 3)
    assert.deepEqual(index.chunks, [
      { index: 0, first_line: 1, line_count: 3, byte_start: 0, byte_end: text.length, model: 'sim-1' },
    ])
    assert.deepEqual(
      index.groups.map(({ model, entity, lines, output_tokens_max_given }) => [
        model,
        entity,
        lines,
        output_tokens_max_given,
      ]),
      [
        ['sim-1', null, 2, 10],
        ['sim-1', 'user:1', 1, 5],
      ],
    )
  })

  test('may begin with a byte order mark and blank lines, which belong to no chunk', async () => {
    const { index } = await accepted(`\ufeff\n \n${lineOf('a')}\n\n`)
    assert.deepEqual(index.chunks, [
      {
        index: 0,
        first_line: 3,
        line_count: 1,
        byte_start: 6,
        byte_end: 6 + lineOf('a').length + 1,
        model: 'sim-1',
      },
    ])
  })

  test('may be as tutorials write it: spaces after colons, no newline at its end', async () => {
    const messages =
      '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}]'
    const line = (i: number, model: string): string =>
      `{"custom_id": "request-${i}", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "${model}", "messages": ${messages}}}`
    const { index, line_count } = await accepted(`${line(1, 'llama-3.1-8b')}\n${line(2, 'gpt-oss')}`)
    assert.equal(line_count, 2)
    assert.deepEqual(
      index.groups.map(({ model, open_choices }) => [model, open_choices]),
      [
        ['llama-3.1-8b', 1],
        ['gpt-oss', 1],
      ],
    )
  })

  test('may hold lines that will fail alone', async () => {
    const { line_count, index } = await accepted(
      `${lineOf('a', { body: {} })}\n${lineOf('b', { body: { model: 1 } })}`,
    )
    assert.equal(line_count, 2)
    assert.deepEqual(
      index.groups.map((group) => group.model),
      [null],
    )
  })
})

describe('a file is refused', () => {
  const cases: [string, string | Buffer, number, ErrorCode][] = [
    ['that is empty', '', 1, 'empty_file'],
    ['of blank lines alone', '\ufeff\n \r\n', 1, 'empty_file'],
    [
      'with a line of bad UTF-8',
      Buffer.concat([Buffer.from(`${lineOf('a')}\n"`), Buffer.from([0xff])]),
      2,
      'invalid_utf8',
    ],
    ['with UTF-16 text', Buffer.from(lineOf('a'), 'utf16le'), 1, 'invalid_json'],
    ['with a line that is too long', `${lineOf('a')}\n\n${lineOf('b'.repeat(10_000))}`, 3, 'line_too_long'],
    ['that is one JSON array', `[${lineOf('a')},\n${lineOf('b')}]`, 1, 'not_an_object'],
    ['that is pretty-printed', JSON.stringify({ custom_id: 'a' }, null, 2), 1, 'invalid_json'],
    ['with a line without custom_id', `${lineOf('a')}\n${lineOf(undefined)}`, 2, 'missing_field'],
    [
      'with a duplicate custom_id',
      `${lineOf('a')}\n${lineOf('b')}\n\n${lineOf('a')}`,
      4,
      'duplicate_custom_id',
    ],
    ['with a streaming body', lineOf('a', { body: { stream: true } }), 1, 'streaming_not_supported'],
  ]
  for (const [name, text, line, code] of cases) {
    test(name, async () => {
      const { errors, details } = await refused(text)
      assert.deepEqual([errors[0]?.line, errors[0]?.code], [line, code])
      assert.ok(details.includes(code))
    })
  }

  test('for a custom_id that is written in two ways', async () => {
    const { errors, error_count } = await refused(`${lineOf('é')}\n${lineOf('é').replace('é', '\\u00e9')}`)
    assert.deepEqual(errors, [
      {
        line: 2,
        code: 'duplicate_custom_id',
        message: 'The custom_id "é" was already used on line 1.',
        param: 'custom_id',
      },
    ])
    assert.equal(error_count, 1)
  })

  test('but not for ids that only look alike', async () => {
    await accepted(`${lineOf('é')}\n${lineOf('e\u0301')}\n${lineOf('\ufffd')}`)
  })

  test('with details that name the first bad line and count the rest', async () => {
    const bad = lineOf('b', { method: 'GET' })
    assert.equal(
      (await refused(`${lineOf('a')}\n${bad}`)).details,
      'Line 2: `method` must be "POST", not "GET". Write `"method": "POST"`. (invalid_method)',
    )
    const { details, line_count, error_count } = await refused(
      [lineOf('a'), lineOf('a'), bad, bad].join('\n'),
    )
    assert.equal(
      details,
      'Line 2: The custom_id "a" was already used on line 1. Change the `custom_id` of one of the two lines, or remove the line. (duplicate_custom_id) There are 2 more invalid lines.',
    )
    assert.equal(line_count, 4)
    assert.equal(error_count, 3)
  })

  test('with the first hundred bad lines listed, whatever is wrong with each', async () => {
    const lines = Array.from({ length: 300 }, (_, i) => (i % 2 ? lineOf('same') : 'x'))
    const { errors, error_count } = await refused(lines.join('\n'))
    assert.equal(errors.length, ERRORS_LISTED_MAX)
    assert.equal(error_count, 299)
    assert.deepEqual(
      errors.slice(0, 4).map(({ line, code }) => [line, code]),
      [
        [1, 'invalid_json'],
        [3, 'invalid_json'],
        [4, 'duplicate_custom_id'],
        [5, 'invalid_json'],
      ],
    )
  })
})

describe('reading stops early', () => {
  test('when the file has too many lines', async () => {
    const text = ['a', 'b', 'c', 'd'].map((id) => lineOf(id)).join('\n\n')
    assert.ok((await validate(text, {}, { ...LIMITS, lines_max: 4 })).ok)
    const { errors, line_count } = await refused(text, {}, { ...LIMITS, lines_max: 3 })
    assert.deepEqual(errors, [
      { line: 7, code: 'too_many_lines', message: 'The file contains more than 3 requests.' },
    ])
    assert.equal(line_count, undefined)
  })

  test('when nearly everything is bad, and closes the source', async () => {
    let closed = false
    async function* endless(): AsyncGenerator<Buffer> {
      try {
        for (;;) yield Buffer.from('x\n'.repeat(1000))
      } finally {
        closed = true
      }
    }
    const validation = await validateContent(endless, { ...LIMITS, lines_max: 1e9 })
    assert.ok(!validation.ok)
    assert.equal(validation.error_count, ERRORS_COUNTED_MAX)
    assert.match(validation.details, /There are at least 9999 more invalid lines\.$/)
    assert.ok(closed)
  })

  test('when one id is used by nearly every line', async () => {
    const text = `${lineOf('a')}\n`.repeat(ERRORS_COUNTED_MAX + 10)
    const { error_count, details } = await refused(text)
    assert.equal(error_count, ERRORS_COUNTED_MAX)
    assert.match(details, /^Line 2: /)
  })

  test('when the signal is aborted', async () => {
    const abort = new AbortController()
    async function* source(): AsyncGenerator<Buffer> {
      for (;;) {
        yield Buffer.from(`${lineOf('a')}\n`)
        abort.abort(new Error('enough'))
      }
    }
    await assert.rejects(validateContent(source, LIMITS, { signal: abort.signal }), /enough/)
    await assert.rejects(validate('', { signal: AbortSignal.abort(new Error('before')) }), /before/)
  })

  test('when the source breaks', async () => {
    async function* broken(): AsyncGenerator<Buffer> {
      yield Buffer.from(lineOf('a'))
      throw new Error('disk gone')
    }
    await assert.rejects(validateContent(broken, LIMITS), /disk gone/)
  })
})

test('progress is told once per block, and the file is read once when no ids look alike', async () => {
  const bytes = Buffer.from(`${lineOf('a')}\n${lineOf('b')}`)
  const seen: number[] = []
  let opened = 0
  await validateContent(
    () => {
      opened++
      return blocksOf(bytes, [10, 20])
    },
    LIMITS,
    { onProgress: (read) => seen.push(read) },
  )
  assert.deepEqual(seen, [10, 30, bytes.length])
  assert.equal(opened, 1)
})

test('duplicates are found exactly, even by a hash that suspects nearly every line', async () => {
  const id = fc.string({ unit: fc.constantFrom('a', 'b', 'é'), minLength: 1, maxLength: 4 })
  await fc.assert(
    fc.asyncProperty(fc.array(id, { minLength: 1, maxLength: 40 }), async (ids) => {
      const first = new Map<string, number>()
      const expected: string[] = []
      for (const [i, custom_id] of ids.entries()) {
        const line = first.get(custom_id)
        if (line === undefined) first.set(custom_id, i + 1)
        else expected.push(`${i + 1}: The custom_id "${custom_id}" was already used on line ${line}.`)
      }
      for (const options of [{ hash: weak }, {}]) {
        const validation = await validate(ids.map((custom_id) => lineOf(custom_id)).join('\n'), options)
        const found = validation.ok ? [] : validation.errors.map(({ line, message }) => `${line}: ${message}`)
        assert.deepEqual(found, expected)
        assert.equal(validation.ok ? 0 : validation.error_count, expected.length)
      }
    }),
  )
})

test('a hash so weak that the file cannot be judged is a fault of ours, not of the file', async () => {
  const constant: IdHash = { lo: 7, hi: 7, read() {} }
  const text = Array.from({ length: ERRORS_COUNTED_MAX + 2 }, (_, i) => lineOf(`${i}`)).join('\n')
  await assert.rejects(validate(text, { hash: constant }), /does not tell them apart/)
})

test('any re-blocking of the same bytes gives the same answer', async () => {
  const line = fc.oneof(
    {
      weight: 8,
      arbitrary: fc.nat({ max: 30 }).map((i) => lineOf(`id-${i}`, { metadata: { entity: `é${i % 3}` } })),
    },
    fc.constantFrom(
      '',
      ' ',
      '{',
      '[]',
      lineOf('x').slice(5),
      lineOf(''),
      lineOf('long'.repeat(100)),
      '\ufeff',
    ),
  )
  const file = fc.tuple(fc.array(line, { maxLength: 12 }), fc.constantFrom('\n', '\r\n'))
  await fc.assert(
    fc.asyncProperty(
      file,
      fc.array(fc.nat({ max: 80 }), { maxLength: 60 }),
      async ([lines, separator], sizes) => {
        const bytes = Buffer.from(lines.join(separator))
        const limits = { lines_max: 10, line_bytes_max: 500 }
        const options = { hash: new SeededHash(new Uint32Array([1, 2])) }
        const whole = await validateContent(() => blocksOf(bytes), limits, options)
        assert.deepEqual(await validateContent(() => blocksOf(bytes, sizes), limits, options), whole)
      },
    ),
    { numRuns: 300 },
  )
})

test('each chunk holds exactly the lines it says', async () => {
  const lines = Array.from({ length: 2500 }, (_, i) => (i % 7 === 3 ? '' : lineOf(`${i}`)))
  const bytes = Buffer.from(lines.join('\n'))
  const { index, line_count } = await accepted(bytes)
  assert.equal(
    index.chunks.reduce((sum, chunk) => sum + chunk.line_count, 0),
    line_count,
  )
  for (const chunk of index.chunks) {
    const inside = bytes.toString('utf8', chunk.byte_start, chunk.byte_end).split('\n')
    assert.equal(inside[0], lines[chunk.first_line - 1])
    assert.equal(inside.filter((line) => line !== '').length, chunk.line_count)
  }
  assert.equal(index.chunks.length, 3)
})
