import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { masterKeyFromText } from '../blobs/master-key.ts'
import { newSigningSecret } from '../notify/webhook-signature.ts'
import { makeApiKey } from './api-key.ts'
import { newId } from './ids.ts'
import { counted, visible, visibleLines, withoutSecrets, withoutUrlSecrets } from './text.ts'

const HOSTILE = [
  '\u001b[2J',
  '\u009b31m',
  '\u007f',
  '\u0007',
  '\r',
  '\t',
  '\u0085',
  '\u200b',
  '\ufeff',
  '\u00ad',
]
const TURNING = ['\u061c', '\u200e', '\u200f', '\u202a', '\u202e', '\u2066', '\u2069', '\u2028', '\u{e0041}']

test('what a terminal would act on, or not show, is escaped, and JSON that holds it stays the same', () => {
  for (const hostile of [...HOSTILE, ...TURNING]) {
    const value = { entity: `user:${hostile}x` }
    // JSON.stringify leaves what is beyond ASCII.
    const shown = visible(JSON.stringify(value))
    assert.ok(!/[^\x20-\x7e]/.test(shown), shown)
    assert.deepEqual(JSON.parse(shown), value)
    assert.ok(!/[^\x20-\x7e]/.test(visible(hostile)))
  }
  assert.equal(visible('a\nb\u001b'), 'a\\u000ab\\u001b')
  assert.equal(visibleLines('a\nb\u001b\r\n'), 'a\nb\\u001b\\u000d\n')
})

test('writing of every kind stays as it is', () => {
  for (const text of [
    '',
    'user:42 – ﬁnance',
    'Łódź 東京 ไทย العربية עברית',
    'می‌خواهم',
    '👩‍👩‍👧 ✓ █░',
    '\\u001b',
  ])
    assert.equal(visible(text), text)
})

const master = masterKeyFromText(randomBytes(32).toString('base64'), 'the test')

test('every secret that is made is found, wherever in a text it stands', () => {
  for (let i = 0; i < 200; i++) {
    const { key } = makeApiKey('eu-central', newId('key', i))
    const { text } = newSigningSecret(master, 'proj_1', 'wh_1')
    assert.equal(withoutSecrets(`x${key}, ${text}`), 'x[secret], [secret]')
    assert.equal(withoutSecrets(JSON.stringify({ a: text, b: key })), '{"a":"[secret]","b":"[secret]"}')
    assert.equal(withoutSecrets(`/v1/files/${key}?x=${text}`), '/v1/files/[secret]?x=[secret]')
  }
})

test('a text without secrets stays as it is', () => {
  for (const text of ['', 'whsec_', 'opk_local', 'req_01k0a7c5m3q8r2t6v9x1z4b7dg'])
    assert.equal(withoutSecrets(text), text)
})

test('URLs are shown without user, password, unknown parameters and fragment, in any text', () => {
  const cases: [url: string, shown: string][] = [
    [
      'https://api.example.com/v1?api-version=2024-06-01&code=s',
      'https://api.example.com/v1?api-version=2024-06-01&code=(hidden)',
    ],
    ['https://sk-secret@host:8443/v1', 'https://(hidden)@host:8443/v1'],
    ['http://u:p@[fd00::1]:3128/', 'http://(hidden)@[fd00::1]:3128/'],
    ['postgres://user:p%40ss@db:5432/offpeak', 'postgres://user:(hidden)@db:5432/offpeak'],
    [
      'postgres://user:p@s/s@db/offpeak?sslmode=require',
      'postgres://user:(hidden)@db/offpeak?sslmode=require',
    ],
    ['postgres://user@h1:5432,h2:5432/db', 'postgres://user@h1:5432,h2:5432/db'],
    ['postgres://user:p?w@db/x', 'postgres://(hidden)?(hidden)'],
    ['s3://b/p?endpoint=http%3A%2F%2Fu%3Ap%40h', 's3://b/p?endpoint=http://(hidden)@h'],
    ['https://h/console#link=opc_x', 'https://h/console#(hidden)'],
    ['https://h/a@b/c', 'https://h/a@b/c'],
    ['file:///tmp/x', 'file:///tmp/x'],
    ['http://127.0.0.1:{port}/v1', 'http://127.0.0.1:{port}/v1'],
    ['http://bücher.example/v1', 'http://bücher.example/v1'],
    ['http://a:1,http://u:p@b/c', 'http://a:1,http://(hidden)@b/c'],
    ['https://h/x;https://u:p@b/c', 'https://h/x;https://(hidden)@b/c'],
    ['https://h/?next=https://u:p@b/c', 'https://h/?next=(hidden)://(hidden)@b/c'],
  ]
  for (const [url, shown] of cases) {
    assert.equal(withoutUrlSecrets(url), shown)
    assert.equal(withoutUrlSecrets(shown), shown)
    assert.equal(
      withoutUrlSecrets(JSON.stringify({ a: `at ${url} b` })),
      JSON.stringify({ a: `at ${shown} b` }),
    )
  }
  for (const text of [
    'no URL: a@b?c=d',
    '://',
    'listening on http://127.0.0.1:8080.',
    'at http://h:80: gone',
    '(see https://h/a)',
  ])
    assert.equal(withoutUrlSecrets(text), text)
})

test('a number takes the words that agree with it', () => {
  const said = [0, 1, 2].map((count) => counted(count, 'batch is', 'batches are'))
  assert.deepEqual(said, ['0 batches are', '1 batch is', '2 batches are'])
  assert.equal(counted(1_000, 'line'), '1000 lines')
})
