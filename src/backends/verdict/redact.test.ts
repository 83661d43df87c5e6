import assert from 'node:assert/strict'
import test from 'node:test'
import { secretsOf } from './redact.ts'

const KEY = 'sk-a/b+c="Q"&<9>%~longer'
const { redact, mayBeIn } = secretsOf([KEY, 'Basic dXNlcjpodW50ZXIyMjIy', 'short', null])

const written: [how: string, text: string][] = [
  ['as it is', KEY],
  ['behind its scheme', `Bearer ${KEY}`],
  ['in another case', KEY.toUpperCase()],
  ['as JSON', JSON.stringify(KEY)],
  ['as JSON within JSON', JSON.stringify(JSON.stringify({ key: KEY }))],
  ['as JSON that escapes slashes', JSON.stringify(KEY).replaceAll('/', '\\/')],
  [
    'as JSON that escapes what HTML minds',
    JSON.stringify(KEY).replace(/[<>&=+]/g, (c) => `\\u00${c.charCodeAt(0).toString(16)}`),
  ],
  ['in a URL', encodeURIComponent(KEY)],
  ['in a URL, in lower case', encodeURIComponent(KEY).toLowerCase()],
  ['in a URL within a URL', encodeURIComponent(encodeURIComponent(KEY))],
  ['in a form', new URLSearchParams({ KEY }).toString()],
  ['as HTML', KEY.replace(/[&<>"+]/g, (c) => `&#${c.charCodeAt(0)};`)],
  ['as HTML with names', KEY.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;')],
  ['as HTML in hexadecimal', KEY.replace(/[^a-z0-9]/gi, (c) => `&#x${c.charCodeAt(0).toString(16)};`)],
]
for (const before of ['', 'B', 'Be', 'Bearer '])
  for (const encoding of ['base64', 'base64url', 'hex'] as const)
    written.push([
      `in ${encoding}, behind "${before}"`,
      Buffer.from(`${before}${KEY}, and more`).toString(encoding),
    ])
for (const [how, text] of written) {
  test(`a key is struck out as a server may write it: ${how}`, () => {
    const left = redact(`before ${text} after`)
    assert.match(left, /^before .*\[redacted\].* after$/)
    assert.doesNotMatch(left, /longer|lvbmdl|6c6f6e676/i)
    if (!/other case/.test(how)) assert.ok(mayBeIn(Buffer.from(text)))
  })
}

test('the password of a basic authorization is a secret, with its name and without', () => {
  assert.equal(
    redact('not dXNlcjpodW50ZXIyMjIy, user:hunter2222, hunter2222'),
    `not ${'[redacted], '.repeat(3).slice(0, -2)}`,
  )
})

test('a key that was cut or taken apart is struck out in its pieces', () => {
  const key = 'sk-proj-0123456789-abcdefghij-KLMNOPQRST'
  const { redact } = secretsOf([key])
  assert.equal(redact(`it begins with ${key.slice(0, 20)}…`), 'it begins with [redacted]…')
  assert.equal(redact(`${key.slice(0, 20)}\n${key.slice(20).toLowerCase()}`), '[redacted]\n[redacted]')
  assert.equal(redact(`${key.slice(0, 20)}\u202e${key.slice(20)}İ`), '[redacted]\u202e[redacted]İ')
  assert.equal(redact('the key sk-proj-012… was refused'), 'the key sk-proj-012… was refused')
})

test('short words are no secrets, and what the model says loses keys alone', () => {
  assert.equal(redact('short'), 'short')
  const secrets = secretsOf(['production', 'sk-0123456789abcdef'])
  assert.equal(secrets.redact('production sk-0123456789abcdef'), '[redacted] [redacted]')
  assert.equal(secrets.redactKeys('production sk-0123456789abcdef'), 'production [redacted]')
})

test('without secrets every text stays as it is', () => {
  const none = secretsOf([undefined, '', 'EMPTY'])
  assert.equal(none.redact('a text'), 'a text')
  assert.equal(none.mayBeIn(Buffer.from('a text')), false)
})

test('a key is found wherever it begins in an answer, and nothing else is', () => {
  const key = 'skproj0123456789abcdefghijKLMNOPQRST'
  const { mayBeIn } = secretsOf([key])
  const written = [key, Buffer.from(key).toString('hex'), Buffer.from(`key: ${key}`).toString('base64')]
  for (const one of written)
    for (let before = 0; before < 64; before++) {
      const around = 'x'.repeat(before)
      assert.ok(mayBeIn(Buffer.from(around + one)), `${one} at ${before}, the last`)
      assert.ok(mayBeIn(Buffer.from(`${around}${one} and more`)), `${one} at ${before}`)
      assert.equal(mayBeIn(Buffer.from(`${around}${one.slice(0, -3)}...`)), false)
    }
  assert.equal(mayBeIn(Buffer.alloc(0)), false)
})
