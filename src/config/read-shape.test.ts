import assert from 'node:assert/strict'
import { test } from 'node:test'
import { nearest } from './read-shape.ts'

const KEYS = ['base_url', 'api_key_env', 'model', 'concurrency_max', 'timeout', 'headers', 'id']

test('a slip of the fingers is put right', () => {
  const slips = [
    ['base_ulr', 'base_url'],
    ['baseurl', 'base_url'],
    ['BASE-URL', 'base_url'],
    ['timout', 'timeout'],
    ['max_concurrency', null],
    ['concurrency', 'concurrency_max'],
    ['header', 'headers'],
  ] as const
  for (const [slip, meant] of slips) assert.equal(nearest(slip, KEYS), meant, slip)
})

test('nothing is suggested for what resembles nothing', () => {
  for (const wrong of ['colour', 'x', 'temperature', '']) assert.equal(nearest(wrong, KEYS), null, wrong)
})

test('of two that are close, the closer one is suggested', () => {
  assert.equal(nearest('lines_mx', ['line_max', 'lines_max']), 'lines_max')
})
