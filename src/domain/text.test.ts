import assert from 'node:assert/strict'
import { test } from 'node:test'
import { visible, visibleLines } from './text.ts'

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
