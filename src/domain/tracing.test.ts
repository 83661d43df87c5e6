import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseTraceparent, unsampled } from './tracing.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const SPAN = '00f067aa0ba902b7'

test('a traceparent is taken in version 00 and in later ones', () => {
  assert.equal(parseTraceparent(`00-${TRACE}-${SPAN}-01`), `00-${TRACE}-${SPAN}-01`)
  assert.equal(parseTraceparent(` 00-${TRACE}-${SPAN}-00 `), `00-${TRACE}-${SPAN}-00`)
  assert.equal(parseTraceparent(`cc-${TRACE}-${SPAN}-03-more`), `00-${TRACE}-${SPAN}-01`)
})

test('anything else is none', () => {
  const zeros = '0'.repeat(32)
  for (const header of [
    undefined,
    ['a', 'b'],
    '',
    'x',
    `00-${TRACE.toUpperCase()}-${SPAN}-01`,
    `ff-${TRACE}-${SPAN}-01`,
    `00-${TRACE}-${SPAN}-01-more`,
    `00-${zeros}-${SPAN}-01`,
    `00-${TRACE}-${zeros.slice(16)}-01`,
    `00-${TRACE}-${SPAN}-01\r\nx: y`,
  ])
    assert.equal(parseTraceparent(header), null, String(header))
})

test('what is not sampled keeps its place in the trace', () => {
  assert.equal(unsampled(`00-${TRACE}-${SPAN}-01`), `00-${TRACE}-${SPAN}-00`)
})
