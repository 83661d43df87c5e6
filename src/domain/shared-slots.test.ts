import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { SharedSlots } from './project-queue.ts'

test('a holder gets half of the slots, and the next ones half of what is left', () => {
  const slots = new SharedSlots(64)
  const takeAll = (holder: string): number => {
    while (slots.take(holder));
    return slots.used(holder)
  }
  assert.deepEqual(['a', 'b', 'c', 'd'].map(takeAll), [32, 16, 8, 4])
})

test('a slot that was returned can be taken again, and to return it twice changes nothing', () => {
  const slots = new SharedSlots(2)
  const giveBack = slots.take('a')
  assert.ok(giveBack)
  assert.equal(slots.take('a'), null)
  giveBack()
  giveBack()
  assert.equal(slots.used('a'), 0)
  assert.ok(slots.take('a'))
  assert.equal(slots.take('a'), null)
})

test('no sequence of takes and returns gives out more than there are, or leaves any behind', () => {
  const step = fc.record({
    holder: fc.constantFrom('a', 'b', 'c'),
    slots: fc.integer({ min: 1, max: 5 }),
    back: fc.nat(9),
  })
  fc.assert(
    fc.property(fc.array(step), (steps) => {
      const slots = new SharedSlots(16)
      const taken: (() => void)[] = []
      for (const { holder, slots: count, back } of steps) {
        const one = slots.take(holder, count)
        if (one) taken.push(one)
        else taken.splice(back % Math.max(1, taken.length), 1)[0]?.()
        assert.ok(slots.used('a') + slots.used('b') + slots.used('c') <= 16)
      }
      for (const giveBack of taken) giveBack()
      assert.deepEqual([slots.used('a'), slots.used('b'), slots.used('c')], [0, 0, 0])
    }),
  )
})
