import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { mapAhead } from './project-queue.ts'

describe('mapping ahead', () => {
  it('keeps the order, whichever piece is done first', async () => {
    const ends: (() => void)[] = []
    const work = (item: number) =>
      new Promise<number>((resolve) => {
        ends.push(() => resolve(item * 10))
        // The third to begin lets all end, backwards.
        if (ends.length === 3) for (const end of ends.toReversed()) end()
      })
    const results: number[] = []
    for await (const result of mapAhead([1, 2, 3], 2, work)) results.push(result)
    assert.deepEqual(results, [10, 20, 30])
  })

  it('begins no more than it was told to', async () => {
    let begun = 0
    const results = mapAhead([1, 2, 3, 4, 5, 6], 2, async (item) => {
      begun++
      return item
    })
    assert.deepEqual(await results.next(), { done: false, value: 1 })
    assert.equal(begun, 3)
    await results.next()
    assert.equal(begun, 4)
  })

  it('ends with the first failure and closes its source', async () => {
    let closed = false
    const items = function* () {
      try {
        for (let i = 0; ; i++) yield i
      } finally {
        closed = true
      }
    }
    const work = async (item: number) => {
      if (item >= 2) throw new Error(`no ${item}`)
      return item
    }
    const got: number[] = []
    await assert.rejects(async () => {
      for await (const item of mapAhead(items(), 2, work)) got.push(item)
    }, /no 2/)
    assert.deepEqual(got, [0, 1])
    assert.equal(closed, true)
  })
})
