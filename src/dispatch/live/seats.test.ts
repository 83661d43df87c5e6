import assert from 'node:assert/strict'
import test from 'node:test'
import { Seats } from './seats.ts'

test('the number that ran when others waited is believed for longer each time that it is found again', () => {
  const seats = new Seats()
  let now = 0
  const read = (running: number, isWaiting: boolean, times = 1): number => {
    for (let i = 0; i < times; i++) {
      now += 500
      seats.add(running, isWaiting, now)
    }
    return seats.count
  }
  assert.equal(read(40, false, 100), Number.POSITIVE_INFINITY)
  assert.equal(read(64, true), 64)
  assert.ok(read(50, false, 60) > 64)
  assert.equal(read(64, true, 6), 64)
  assert.equal(read(50, false, 600), 64)
})

test('a few that wait for long prompts do not make a server smaller than it was seen to be', () => {
  const seats = new Seats()
  for (let now = 0; now < 60_000; now += 500) seats.add(60, false, now)
  seats.add(20, true, 60_500)
  assert.equal(seats.count, Number.POSITIVE_INFINITY)
})
