import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { BatchFaults } from '../../servers/circuit.ts'

test('a batch is at fault once later lines of other batches were answered', () => {
  const faults = new BatchFaults()
  for (let i = 0; i < 20; i++) faults.onMissed('bad', 100)
  for (let i = 0; i < 20; i++) faults.onAnswered('good', 99)
  assert.ok(!faults.isAtFault('bad'), 'the server may have gone down in between')
  faults.onAnswered('good', 100)
  assert.deepEqual([faults.isAtFault('bad'), faults.isAtFault('good')], [true, false])
  assert.ok(faults.isHopeless('bad'))
  faults.onAnswered('bad', 101)
  assert.deepEqual([faults.isAtFault('bad'), faults.isHopeless('bad')], [true, false])
})

test('an answer confirms the misses before its line was sent, though more of them came since', () => {
  const faults = new BatchFaults()
  for (let at = 1; at <= 20; at++) {
    faults.onMissed('bad', at)
    if (at > 10) faults.onAnswered('good', at - 1)
  }
  assert.ok(faults.isAtFault('bad'))
})

test('two batches that are at fault do not hide each other', () => {
  const faults = new BatchFaults()
  for (let i = 0; i < 20; i++) {
    faults.onMissed('bad', i)
    faults.onMissed('worse', i)
    faults.onAnswered('good', i)
  }
  assert.deepEqual([faults.isAtFault('bad'), faults.isAtFault('worse')], [true, true])
})

test('an unreachable server resets all counts', () => {
  const faults = new BatchFaults()
  for (let i = 0; i < 20; i++) faults.onMissed('bad', 0)
  for (let i = 0; i < 20; i++) faults.onAnswered('good', 1)
  faults.onUnreachable()
  assert.ok(!faults.isAtFault('bad'))
})

test('without other batches to compare with, a batch is never at fault', () => {
  const faults = new BatchFaults()
  for (let i = 0; i < 100; i++) faults.onMissed('only', i)
  for (let i = 0; i < 100; i++) faults.onAnswered('only', 100 + i)
  assert.ok(!faults.isAtFault('only'))
})

test('a server that fails all batches alike almost never puts one at fault', () => {
  let judged = 0
  let wrong = 0
  const dice = fc.array(fc.tuple(fc.nat(3), fc.double({ min: 0, max: 1, noNaN: true })), {
    minLength: 300,
    maxLength: 300,
  })
  fc.assert(
    fc.property(dice, fc.double({ min: 0.02, max: 0.9, noNaN: true }), (lines, rate) => {
      const faults = new BatchFaults()
      for (const [i, [batch, chance]] of lines.entries()) {
        const id = String(batch)
        if (chance < rate) faults.onMissed(id, i)
        else faults.onAnswered(id, i)
        judged++
        if (faults.isAtFault(id)) wrong++
      }
    }),
    { seed: 7, numRuns: 100 },
  )
  assert.ok(wrong < judged / 500, `${wrong} of ${judged}`)
})
