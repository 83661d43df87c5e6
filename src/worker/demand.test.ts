import assert from 'node:assert/strict'
import { test } from 'node:test'
import { lowWaterMark } from '../dispatch/lane.ts'
import { demandOf } from './demand.ts'

function lane(waiting: number, concurrency: number, blocked = false) {
  const isLow = waiting < lowWaterMark(concurrency)
  return { waiting, concurrency, isLow, blocked: () => blocked, takesAtRisk: () => false }
}

test('a lane with enough lines does not keep another lane from getting lines', () => {
  const lanes = [
    ['busy', lane(5_000, 100)],
    ['idle', lane(0, 100)],
  ] as const
  assert.deepEqual(demandOf(lanes, 0), {
    wantsMore: false,
    low: ['idle'],
    full: ['busy'],
    blocked: [],
    atRiskOnly: [],
  })
})

test('lines that wait for an unavailable model do not reduce the demand', () => {
  const lanes = [
    ['down', lane(50_000, 32, true)],
    ['up', lane(10, 32)],
  ] as const
  assert.deepEqual(demandOf(lanes, 0), {
    wantsMore: true,
    low: ['up'],
    full: [],
    blocked: ['down'],
    atRiskOnly: [],
  })
})

test('fast servers need more lines ahead', () => {
  assert.equal(demandOf([['m', lane(1_500, 600)]], 0).wantsMore, false)
  assert.equal(demandOf([['m', lane(1_500, 800)]], 0).wantsMore, true)
})
