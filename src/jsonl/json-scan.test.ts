import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { DEPTH_MAX, type JsonFault, JsonScanner, Names } from './json-scan.ts'

fc.configureGlobal({ seed: 7 })

const scanner = new JsonScanner()

/** Scans `text` in the middle of other bytes, at every alignment in turn, so that a read too far shows. */
let alignment = 0
function faultOf(text: string | Buffer): JsonFault | null {
  alignment = (alignment + 1) % 4
  const before = Buffer.from('"{['.slice(0, alignment))
  const bytes = Buffer.concat([before, Buffer.from(text), Buffer.from('"}]0 ')])
  scanner.open(bytes, before.length, bytes.length - 5)
  scanner.skipValue()
  scanner.finish()
  return scanner.fault
}

function parses(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

function agrees(text: string): void {
  assert.equal(faultOf(text) === null, parses(text), JSON.stringify(text))
}

describe('the scanner agrees with JSON.parse', () => {
  test('on any JSON, compact or spread out', () => {
    const indent = fc.constantFrom('', ' ', '\t', '\r\n')
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 6 }), indent, (value, space) => {
        assert.equal(faultOf(JSON.stringify(value, null, space)), null)
      }),
    )
  })

  test('on JSON with a few bytes changed, removed or added', () => {
    const change = fc.record({
      at: fc.nat(),
      cut: fc.nat({ max: 2 }),
      add: fc.oneof(
        fc.constantFrom(
          '"',
          '\\',
          '\\u',
          '{',
          '}',
          '[',
          ']',
          ',',
          ':',
          '0',
          '-',
          '.',
          'e',
          'true',
          'nul',
          ' ',
        ),
        fc.constantFrom('\n', '\t', '\u0000', '\u001f', '\u007f', '\u00e9', '\u2028', ''),
      ),
    })
    fc.assert(
      fc.property(
        fc.jsonValue({ maxDepth: 4 }),
        fc.array(change, { minLength: 1, maxLength: 3 }),
        (value, changes) => {
          let text = JSON.stringify(value)
          for (const { at, cut, add } of changes) {
            const from = at % (text.length + 1)
            text = text.slice(0, from) + add + text.slice(from + cut)
          }
          agrees(text.toWellFormed())
        },
      ),
      { numRuns: 2000 },
    )
  })

  test('on strings of the characters that JSON is made of', () => {
    const token = fc.constantFrom(...'{}[],:"\\/0123456789-+.eEtrufalsn \t\n')
    fc.assert(
      fc.property(fc.array(token, { maxLength: 12 }), (tokens) => agrees(tokens.join(''))),
      { numRuns: 5000 },
    )
  })

  test('on arbitrary bytes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 40 }), (bytes) => agrees(Buffer.from(bytes).toString('utf8'))),
      { numRuns: 1000 },
    )
  })

  const cases = {
    numbers: [
      '0',
      '-0',
      '01',
      '-',
      '1.',
      '.5',
      '1.0',
      '1e2',
      '1E+2',
      '1e',
      '1e+',
      '+1',
      '0x1',
      '9007199254740993',
      '1e999',
    ],
    literals: ['true', 'false', 'null', 'tru', 'truee', 'True', 'NaN', 'undefined'],
    escapes: ['"\\ud800"', '"\\u00e9"', '"\\u00E"', '"\\u00eg"', '"\\x41"', '"\\"', '"\\\\"', '"\\', '"\\u'],
    strings: ['"', '""', '"a\tb"', '"a\u0000b"', '"a\u007fb"', '"\u2028"', "'a'", '"abcdefgh\nijkl"'],
    structure: [
      '',
      ' ',
      '{',
      '{}',
      '{"a"}',
      '{"a":}',
      '{"a":1,}',
      '{,}',
      '[1,]',
      '[,1]',
      '[1 2]',
      '{a:1}',
      '{}{}',
      '{} x',
      '[]]',
    ],
    oddities: [
      '\ufeff{}',
      '\u00a0{}',
      '{"__proto__":{"a":1},"__proto__":2}',
      '{"a":1,"a":2}',
      '/**/{}',
      '\v1',
    ],
  }
  for (const [name, texts] of Object.entries(cases)) {
    test(`on ${name}`, () => {
      for (const text of texts) agrees(text)
    })
  }
})

test('nesting is accepted to the limit and not beyond, in objects and arrays, skipped or stepped through', () => {
  const objects = (levels: number): string => `${'{"a":'.repeat(levels)}1${'}'.repeat(levels)}`
  const arrays = (levels: number): string => `${'['.repeat(levels)}1${']'.repeat(levels)}`
  const stepped = (text: string, levels: number): string | undefined => {
    const bytes = Buffer.from(text)
    scanner.open(bytes, 0, bytes.length)
    for (let i = 0; i < levels; i++) {
      const inside = scanner.kind() === 'object' ? scanner.beginObject() : scanner.beginArray()
      if (!inside) break
    }
    scanner.skipValue()
    return scanner.fault?.code
  }
  for (const nested of [objects, arrays]) {
    assert.equal(faultOf(nested(DEPTH_MAX)), null)
    assert.equal(faultOf(nested(DEPTH_MAX + 1))?.code, 'nesting_too_deep')
    for (const levels of [1, DEPTH_MAX, DEPTH_MAX + 1]) {
      assert.equal(stepped(nested(DEPTH_MAX), Math.min(levels, DEPTH_MAX)), undefined)
      assert.equal(stepped(nested(DEPTH_MAX + 1), levels), 'nesting_too_deep')
    }
  }
  assert.equal(faultOf('['.repeat(100_000))?.code, 'nesting_too_deep')
})

test('a fault names the byte where it was noticed', () => {
  const bytes = Buffer.from('{"a": 1, "b" 2}')
  scanner.open(bytes, 0, bytes.length)
  scanner.skipValue()
  assert.deepEqual(scanner.fault, { code: 'invalid_json', at: 13, what: 'expected ":"' })
})

test('a control character is found at every place in a word', () => {
  for (let at = 1; at < 40; at++) {
    const text = `"${'x'.repeat(at)}\u001f${'y'.repeat(8)}"`
    for (let i = 0; i < 4; i++)
      assert.equal(faultOf(text)?.what, 'a control character in a string must be escaped')
  }
})

describe('stepping through a value', () => {
  const KEYS = new Names('model', 'n')

  test('finds the same members as JSON.parse, whatever their order and escapes', () => {
    fc.assert(
      fc.property(
        fc.dictionary(fc.oneof(fc.constantFrom('model', 'n', 'mode', ''), fc.string()), fc.jsonValue()),
        (object) => {
          const bytes = Buffer.from(JSON.stringify(object).replaceAll('"model"', '"mod\\u0065l"'))
          const found: Record<string, unknown> = { __proto__: null }
          const json = new JsonScanner()
          json.open(bytes, 0, bytes.length)
          for (let more = json.beginObject(); more; more = json.nextMember()) {
            const name = json.decode(json.key_start, json.key_end, json.key_escaped)
            assert.equal(json.key(KEYS), name === 'model' || name === 'n' ? name : null)
            const start = json.at
            json.skipValue()
            found[name] = JSON.parse(bytes.toString('utf8', start, json.at))
          }
          json.finish()
          assert.equal(json.fault, null)
          assert.deepEqual(Object.entries(found), Object.entries(JSON.parse(bytes.toString())))
        },
      ),
    )
  })

  test('ends at a fault, however deep the loops', () => {
    const bytes = Buffer.from('[[{"a":[1,')
    const json = new JsonScanner()
    json.open(bytes, 0, bytes.length)
    let steps = 0
    for (let a = json.beginArray(); a; a = json.nextElement()) {
      for (let b = json.beginArray(); b; b = json.nextElement()) {
        for (let c = json.beginObject(); c; c = json.nextMember()) {
          steps++
          json.skipValue()
        }
      }
    }
    assert.equal(steps, 1)
    assert.equal(json.fault?.at, bytes.length)
  })

  test('reads numbers as JSON.parse does', () => {
    const literal = fc.oneof(
      fc.double({ noNaN: true, noDefaultInfinity: true }).map((x) => JSON.stringify(x)),
      fc.tuple(fc.nat(), fc.nat()).map(([a, b]) => `${a}.${b}`),
      fc.constantFrom('-0', '0.1', '0.20', '1e2', '1E-7', '12345678901234567890', '0.3000000000000000444'),
    )
    fc.assert(
      fc.property(literal, (text) => {
        const bytes = Buffer.from(text)
        scanner.open(bytes, 0, bytes.length)
        assert.ok(Object.is(scanner.readNumber(), JSON.parse(text)), text)
        assert.equal(scanner.at, bytes.length)
      }),
      { numRuns: 1000 },
    )
  })
})
