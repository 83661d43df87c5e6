import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'
import fc from 'fast-check'
import { ApiError } from '../domain/errors.ts'
import { MessageRequests } from './message-requests.ts'

/** The lines of a body in pieces of these lengths, the last one repeated. */
async function linesOf(body: string, lengths: readonly number[] = [65_536]): Promise<string> {
  const bytes = Buffer.from(body)
  async function* pieces(): AsyncGenerator<Buffer> {
    for (let at = 0, i = 0; at < bytes.length; i++) {
      const length = lengths[Math.min(i, lengths.length - 1)] ?? 1
      yield Buffer.from(bytes.subarray(at, at + length))
      at += length
    }
  }
  const requests = new MessageRequests(pieces(), 8 * 1024 * 1024)
  let text = ''
  for await (const block of requests.lines(() => {})) text += block.toString()
  assert.equal(requests.sha256(), createHash('sha256').update(bytes).digest('hex'))
  return text
}

const WEIRD =
  '{"model":"m","a":1e400,"b":12345678901234567890,"c":"\\u00e9\\/é]}\\"[{\\\\","d":[[{"e":"}"}]],"stop":["]"]}'
const BODY = `{ "requests" : [\n {"custom_id":"a\\"]","params":${WEIRD}} ,\r\n{"params":{\n"x": 1.0\n} , "custom_id":"b"}] }\n`
const LINES =
  `{"custom_id":"a\\"]","method":"POST","url":"/v1/messages","body":${WEIRD}}\n` +
  '{"custom_id":"b","method":"POST","url":"/v1/messages","body":{ "x": 1.0 }}\n'

test('requests become lines whose params keep their bytes, wherever the body is divided', async () => {
  assert.equal(await linesOf(BODY), LINES)
  assert.equal(await linesOf(`\ufeff${BODY}`, [1]), LINES)
  const lengths = fc.array(fc.integer({ min: 1, max: 80 }), { minLength: 1, maxLength: 20 })
  await fc.assert(
    fc.asyncProperty(lengths, async (some) => assert.equal(await linesOf(BODY, some), LINES)),
    { numRuns: 200 },
  )
})

test('a body of another form names what is wrong', async () => {
  const ok = '{"custom_id":"a","params":{}}'
  const cases: [body: string, code: string, message: RegExp][] = [
    ['', 'invalid_request', /The body must be/],
    ['{}', 'invalid_request', /The body must be/],
    ['[]', 'invalid_request', /The body must be/],
    [`{"requests":[${ok}],"betas":[]}`, 'invalid_request', /The body must be/],
    [`{"model":"m","requests":[${ok}]}`, 'invalid_request', /The body must be/],
    [`{"requests":[${ok}]}{}`, 'invalid_request', /The body must be/],
    [`{"requests":[${ok}`, 'invalid_request', /The body must be/],
    [`{"requests":[${ok},${ok.slice(0, -2)}`, 'invalid_request', /The body must be/],
    ['{"requests":[]}', 'invalid_request', /1 to 100000 requests, not none/],
    ['{"requests":[7]}', 'invalid_json', /`requests\[0\]` must be an object/],
    [`{"requests":[${ok} ${ok}]}`, 'invalid_json', /`requests\[1\]` must be an object, with a comma/],
    [`{"requests":[${ok},]}`, 'invalid_json', /`requests\[1\]`/],
    [`{"requests":[${ok},{"params":{}}]}`, 'invalid_request', /`requests\[1\].custom_id` is required/],
    ['{"requests":[{"custom_id":"a"}]}', 'invalid_request', /`requests\[0\].params` is required/],
    ['{"requests":[{"custom_id":1,"params":{}}]}', 'invalid_request', /custom_id` must be a string/],
    ['{"requests":[{"custom_id":"a","params":[]}]}', 'invalid_request', /params` must be an object/],
    [`{"requests":[{"body":{},${ok.slice(1)}]}`, 'invalid_request', /`requests\[0\].body` is no field/],
    ['{"requests":[{"custom_id":"a","params":{"x":01}}]}', 'invalid_json', /`requests\[0\]` is not valid/],
    [`{"requests":[${ok}]${' '.repeat(2_000)}}`, 'invalid_request', /The body must be/],
  ]
  for (const [body, code, message] of cases)
    for (const lengths of [[65_536], [1]])
      await assert.rejects(linesOf(body, lengths), (error: unknown) => {
        assert.ok(error instanceof ApiError, String(error))
        assert.equal(error.code, code, body)
        assert.match(error.message, message)
        return true
      })
})

test('a hundred thousand requests are taken, and not one more', async () => {
  const requests = (count: number): string =>
    `{"requests":[${Array.from({ length: count }, (_, i) => `{"custom_id":"${i}","params":{}}`).join(',')}]}`
  assert.equal((await linesOf(requests(100_000))).split('\n').length, 100_001)
  await assert.rejects(linesOf(requests(100_001)), /1 to 100000 requests, not more than 100000/)
})
