import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { type BatchProgress, batchLine, percent, uploadLine, waitLine } from './progress-view.ts'
import { plain } from './terminal.ts'

const half: BatchProgress = {
  status: 'in_progress',
  total: 1319,
  done: 660,
  failed: 2,
  notRun: 0,
  cost_usd: 0.0432,
  rate: 312.4,
  tokenRate: null,
  leftMs: 2100,
}

test('a wide line shows every part and a bar of bounded length', () => {
  assert.equal(
    batchLine(half, 200, plain),
    `in_progress  ${'█'.repeat(15)}${'░'.repeat(15)}   50%  660/1,319 lines  2 failed  312/s  3.0s left  $0.0432`,
  )
})

test('the reason why a batch waits is shown where there is room', () => {
  const waiting = { ...half, rate: null, leftMs: null, reason: 'No server of the model m answers.' }
  assert.match(batchLine(waiting, 200, plain), / {2}\$0\.0432 {2}No server of the model m answers\.$/)
  assert.match(batchLine(waiting, 60, plain), /\$0\.0432$/)
})

test('in 80 columns the bar shrinks and no part is left out', () => {
  const line = batchLine(half, 80, plain)
  assert.equal(line.length <= 80, true)
  assert.match(line, /50% {2}660\/1,319 lines {2}2 failed {2}312\/s {2}3.0s left/)
})

test('a narrow line keeps the status and the percentage', () => {
  assert.equal(batchLine(half, 30, plain), `in_progress  ${'█'.repeat(5)}${'░'.repeat(6)}   50%`)
  assert.equal(batchLine(half, 26, plain), 'in_progress   50%')
  assert.equal(batchLine(half, 36, plain), 'in_progress   50%  660/1,319 lines')
  assert.equal(batchLine(half, 5, plain), 'in_pr')
})

test('no line is wider than the given columns', () => {
  fc.assert(
    fc.property(fc.nat(200), fc.nat(1e7), fc.nat(1e7), fc.nat(1e6), (columns, total, done, failed) => {
      const progress = { ...half, total, done: Math.min(done, total), failed }
      assert.ok(batchLine(progress, columns, plain).length <= columns)
      assert.ok(uploadLine(done, total, columns, plain).length <= columns)
      assert.ok(waitLine('validating', columns, plain).length <= columns)
    }),
  )
})

test('a batch that is not running yet shows neither rate nor time left', () => {
  const line = batchLine({ ...half, status: 'queued', done: 0, failed: 0, cost_usd: 0 }, 200, plain)
  assert.doesNotMatch(line, /\/s|left|failed/)
})

test('100% is not shown before the last line is done', () => {
  assert.equal(percent(9_999_999, 10_000_000), 99)
  assert.equal(percent(10, 10), 100)
  assert.equal(percent(0, 0), 0)
})

test('tokens a second are shown while lines run', () => {
  assert.match(batchLine({ ...half, tokenRate: 1234.5 }, 120, plain), /1,235 tokens\/s/)
  assert.doesNotMatch(batchLine({ ...half, status: 'completed', tokenRate: 9 }, 120, plain), /tokens/)
})
