import assert from 'node:assert/strict'
import { test } from 'node:test'
import { OpeningHours } from '../../domain/hours.ts'
import { ModelServer, type Upstream, type UpstreamTerms } from './upstream.ts'

const backend = {
  name: 'u',
  send: async () => assert.fail('nothing is sent'),
  close: async () => {},
}

function opening(terms: UpstreamTerms, at: string): ReturnType<Upstream['openingAt']> {
  const upstream = new ModelServer({ backend, modelAlias: null, ...terms })
  return upstream.openingAt(Date.parse(at))
}

test('an upstream tells how many lines its hours allow, and until when', () => {
  const evenings = { days: [1, 2, 3, 4, 5, 6, 7], from: 20 * 60, to: 7 * 60, timezone: 'UTC' }
  const hours = new OpeningHours([{ ...evenings, concurrency_max: 512 }])
  const terms = { concurrency_max: 64, hours }
  assert.deepEqual(opening(terms, '2026-01-05T21:00:00Z'), {
    places: 64,
    until: Date.parse('2026-01-06T07:00:00Z'),
  })
  assert.deepEqual(opening(terms, '2026-01-05T12:00:00Z'), {
    places: 0,
    until: Date.parse('2026-01-05T20:00:00Z'),
  })
  assert.equal(opening({ concurrency_max: 64 }, '2026-01-05T12:00:00Z'), null)
})
