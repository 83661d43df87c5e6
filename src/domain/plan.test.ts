import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { durationMs, durationText } from './days.ts'
import { type Plan, QUOTAS_DEFAULT, quotaExceeded, windowOf } from './plan.ts'

describe('durations', () => {
  test('each unit is understood', () => {
    const table = [
      ['250ms', 250],
      ['5s', 5000],
      ['10m', 600_000],
      ['24h', 86_400_000],
      ['90d', 7_776_000_000],
      ['0s', 0],
    ] as const
    for (const [text, ms] of table) assert.equal(durationMs(text), ms, text)
  })

  test('what is not a whole number and a unit is no duration', () => {
    for (const text of [
      '',
      '5',
      's',
      '5 s',
      '1.5h',
      '-1s',
      '5S',
      '5w',
      '5sm',
      '1h30m',
      ' 5s',
      '5s\n',
      '5constructor',
    ]) {
      assert.equal(durationMs(text), null, JSON.stringify(text))
    }
  })

  test('a duration beyond exact counting is none', () => {
    assert.equal(durationMs('999999999999d'), null)
  })

  test('a duration is written in its largest whole unit', () => {
    assert.equal(durationText(86_400_000), '1d')
    assert.equal(durationText(90_000), '90s')
    assert.equal(durationText(250), '250ms')
    assert.equal(durationText(0), '0s')
    assert.throws(() => durationText(1.5), RangeError)
  })

  test('what is written is read as the same duration', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER }), (ms) => {
        assert.equal(durationMs(durationText(ms)), ms)
      }),
    )
  })
})

describe('the window of a batch', () => {
  const payg: Plan = {
    name: 'payg',
    completion_windows: [{ text: '24h', ms: 86_400_000 }],
    file_retention_ms: 1,
    retention: null,
    live_price_share: null,
    quotas: QUOTAS_DEFAULT,
  }

  test('is as long as the plan says', () => {
    assert.deepEqual(windowOf(payg, '24h'), { text: '24h', ms: 86_400_000 })
  })

  test('may be written in another unit', () => {
    assert.deepEqual(windowOf(payg, '1d'), { text: '24h', ms: 86_400_000 })
  })

  test('that the plan lacks is told apart from nonsense', () => {
    assert.equal(windowOf(payg, '4h'), 'not_in_plan')
    assert.equal(windowOf(payg, '48h'), 'not_in_plan')
    for (const text of ['', '0h', 'soon', '24', '24H', '-24h'])
      assert.equal(windowOf(payg, text), 'invalid', text)
  })
})

test('the message of a quota agrees with its limit', () => {
  assert.match(quotaExceeded('open_batches', 1, 1, 1).message, /may have 1 unfinished batch; it has 1, and/)
  assert.match(quotaExceeded('keys', 2, 2, 1).message, /may have 2 API keys; it has 2, and/)
})
