import assert from 'node:assert/strict'
import { test } from 'node:test'
import { finishAt, type HoursWindow, OpeningHours, opensAt } from './hours.ts'

const WEEKDAYS = [1, 2, 3, 4, 5]
const DAILY = [1, 2, 3, 4, 5, 6, 7]
const HOUR_MS = 3_600_000

function window(more: Partial<HoursWindow> = {}): HoursWindow {
  return { days: DAILY, from: 20 * 60, to: 7 * 60, timezone: 'UTC', concurrency_max: null, ...more }
}

function at(
  windows: readonly HoursWindow[],
  time: string,
): { concurrency_max: number | null; until: string } {
  const { concurrency_max, until } = new OpeningHours(windows).at(Date.parse(time))
  return { concurrency_max, until: Number.isFinite(until) ? new Date(until).toISOString() : 'never' }
}

test('a window across midnight belongs to the day on which it opens', () => {
  const overnight = [window({ days: WEEKDAYS, concurrency_max: 512 })]
  // 2026-01-16 is a Friday.
  assert.deepEqual(at(overnight, '2026-01-16T19:59:59Z'), {
    concurrency_max: 0,
    until: '2026-01-16T20:00:00.000Z',
  })
  assert.deepEqual(at(overnight, '2026-01-16T20:00:00Z'), {
    concurrency_max: 512,
    until: '2026-01-17T07:00:00.000Z',
  })
  assert.deepEqual(at(overnight, '2026-01-17T07:00:00Z'), {
    concurrency_max: 0,
    until: '2026-01-19T20:00:00.000Z',
  })
})

test('windows that adjoin with the same bound are one, and the first that matches counts', () => {
  const always = [window({ from: 0, to: 1440 })]
  assert.deepEqual(at(always, '2026-01-16T12:00:00Z'), { concurrency_max: null, until: 'never' })
  const lunch = [window({ from: 12 * 60, to: 13 * 60, concurrency_max: 4 }), ...always]
  assert.deepEqual(at(lunch, '2026-01-16T12:30:00Z'), {
    concurrency_max: 4,
    until: '2026-01-16T13:00:00.000Z',
  })
  assert.deepEqual(at(lunch, '2026-01-16T13:00:00Z'), {
    concurrency_max: null,
    until: '2026-01-17T12:00:00.000Z',
  })
})

test('where all windows are closed ones, it is open outside them', () => {
  const office = [window({ days: WEEKDAYS, from: 8 * 60, to: 18 * 60, concurrency_max: 0 })]
  assert.deepEqual(at(office, '2026-01-16T12:00:00Z'), {
    concurrency_max: 0,
    until: '2026-01-16T18:00:00.000Z',
  })
  assert.deepEqual(at(office, '2026-01-16T18:00:00Z'), {
    concurrency_max: null,
    until: '2026-01-19T08:00:00.000Z',
  })
})

test('a window keeps its wall-clock times when daylight saving begins and ends', () => {
  const berlin = [window({ timezone: 'Europe/Berlin' })]
  // Until 2026-03-29T01:00Z Berlin is an hour ahead, from then on two.
  assert.equal(at(berlin, '2026-03-28T18:59:00Z').until, '2026-03-28T19:00:00.000Z')
  assert.equal(at(berlin, '2026-03-28T22:00:00Z').until, '2026-03-29T05:00:00.000Z')
  assert.equal(at(berlin, '2026-03-29T12:00:00Z').until, '2026-03-29T18:00:00.000Z')
  // On 2026-10-25T01:00Z it is one hour again: that window is an hour longer.
  assert.equal(at(berlin, '2026-10-24T22:00:00Z').until, '2026-10-25T06:00:00.000Z')
})

test('a time that daylight saving skips opens an hour later; of one that comes twice, the first counts', () => {
  const skipped = [window({ timezone: 'Europe/Berlin', from: 150, to: 300 })]
  assert.equal(at(skipped, '2026-03-28T23:00:00Z').until, '2026-03-29T01:30:00.000Z')
  assert.equal(at(skipped, '2026-10-24T22:30:00Z').until, '2026-10-25T00:30:00.000Z')
})

test('work is done when the open time suffices for it, over several days if need be', () => {
  const hours = [new OpeningHours([window({ from: 22 * 60, to: 24 * 60 })])]
  const noon = Date.parse('2026-01-16T12:00:00Z')
  assert.equal(opensAt(hours, noon), Date.parse('2026-01-16T22:00:00Z'))
  assert.equal(finishAt(hours, noon, HOUR_MS, noon + 100 * HOUR_MS), Date.parse('2026-01-16T23:00:00Z'))
  assert.equal(finishAt(hours, noon, 3 * HOUR_MS, noon + 100 * HOUR_MS), Date.parse('2026-01-17T23:00:00Z'))
  assert.equal(finishAt(hours, noon, 3 * HOUR_MS, noon + 12 * HOUR_MS), Number.POSITIVE_INFINITY)
  assert.equal(finishAt([...hours, null], noon, HOUR_MS, noon + 2 * HOUR_MS), noon + HOUR_MS)
})

test('hours with a window of no day never open', () => {
  const never = [new OpeningHours([window({ days: [] })])]
  assert.equal(opensAt(never, 0), Number.POSITIVE_INFINITY)
})
