import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { type AnswerHolder, type Receiving, ResponseMemory } from './response-memory.ts'

const MIB = 1024 * 1024

class Answer implements Receiving {
  paused = false
  bytes = 0
  pause(): void {
    this.paused = true
  }
  resume(): void {
    this.paused = false
  }
}

describe('the budget of answers', () => {
  test('answers that are all half received come to an end, one after the other', () => {
    const budget = new ResponseMemory(4 * MIB)
    const answers = Array.from({ length: 20 }, () => new Answer())
    const left = new Set(answers)
    let peak = 0
    while (left.size > 0) {
      const reading = [...left].filter((answer) => !answer.paused)
      assert.ok(reading.length > 0, 'all are paused')
      for (const answer of reading) {
        if (answer.paused) continue
        answer.bytes += 64 * 1024
        if (answer.bytes < 3 * MIB) budget.received(answer, answer.bytes)
        else {
          left.delete(answer)
          budget.ended(answer)
        }
        peak = Math.max(
          peak,
          [...left].reduce((sum, one) => sum + one.bytes, 0),
        )
      }
    }
    assert.ok(peak < 10 * MIB, `${peak} bytes`)
  })

  test('while results are not written nothing more is read or sent, and both go on afterwards', () => {
    const budget = new ResponseMemory(4 * MIB)
    let rooms = 0
    budget.onRoom = () => rooms++
    const answer = new Answer()
    budget.result_bytes = 5 * MIB
    budget.received(answer, 1000)
    assert.deepEqual([answer.paused, budget.hasRoom, rooms], [true, false, 0])
    budget.result_bytes = MIB
    assert.deepEqual([answer.paused, budget.hasRoom, rooms], [false, true, 1])
  })

  test('a whole answer that is examined keeps the next one from being read on, and one that stays does not', () => {
    const budget = new ResponseMemory(4 * MIB)
    budget.hold('examined', 2 * MIB)
    const answer = new Answer()
    budget.received(answer, 3 * MIB)
    assert.ok(answer.paused)
    budget.free('examined', 2 * MIB)
    assert.ok(budget.hold('kept', MIB) && budget.hold('remembered', MIB / 2))
    assert.ok(!budget.hold('kept', 1) && !budget.hold('remembered', 1))
    assert.ok(!answer.paused && !budget.hasRoom)
  })

  test('whatever comes, ends, is held and is written, nothing waits for ever', () => {
    const step = fc.record({
      holder: fc.constantFrom<AnswerHolder>('examined', 'kept', 'remembered'),
      answer: fc.nat(5),
      bytes: fc.integer({ min: 1, max: 2 * MIB }),
      ends: fc.boolean(),
    })
    fc.assert(
      fc.property(fc.array(step), fc.array(fc.nat(6 * MIB)), (steps, results) => {
        const budget = new ResponseMemory(4 * MIB)
        const answers = Array.from({ length: 6 }, () => new Answer())
        const examined: number[] = []
        for (const [i, { holder, answer: number, bytes, ends }] of steps.entries()) {
          if (budget.hold(holder, bytes) && holder === 'examined') examined.push(bytes)
          const answer = answers[number]!
          budget.result_bytes = results[i] ?? 0
          if (answer.paused) continue
          answer.bytes += bytes
          if (!ends) budget.received(answer, answer.bytes)
          else {
            budget.ended(answer)
            answer.bytes = 0
          }
        }
        budget.result_bytes = 0
        for (const bytes of examined) budget.free('examined', bytes)
        while (answers.some((answer) => answer.bytes > 0)) {
          const next = answers.find((answer) => answer.bytes > 0 && !answer.paused)
          assert.ok(next, 'all that are left are paused')
          budget.ended(next)
          next.bytes = 0
        }
        assert.ok(answers.every((answer) => !answer.paused))
        assert.ok(budget.hasRoom)
      }),
    )
  })
})
