import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { FolderSync } from './durable-folders.ts'

/** Syncs that end when the test ends them. */
function blockedSyncs() {
  const begun: { folder: string; end: () => void; fail: (error: Error) => void }[] = []
  const sync = new FolderSync(
    (folder) =>
      new Promise((end, fail) => {
        begun.push({ folder, end, fail })
      }),
  )
  return { begun, sync }
}

describe('syncing folders', () => {
  it('calls made while a sync runs share one that begins after it', async () => {
    const { begun, sync } = blockedSyncs()
    const first = sync.sync('a')
    const second = sync.sync('a')
    const third = sync.sync('a')
    assert.equal(begun.length, 1)
    let second_done = false
    second.then(() => {
      second_done = true
    })
    begun[0]!.end()
    await first
    await new Promise(setImmediate)
    assert.equal(second_done, false, 'the first sync may have begun before the second rename')
    assert.equal(begun.length, 2)
    const fourth = sync.sync('a')
    begun[1]!.end()
    await Promise.all([second, third])
    await new Promise(setImmediate)
    assert.equal(begun.length, 3)
    begun[2]!.end()
    await fourth
    const fifth = sync.sync('a')
    assert.equal(begun.length, 4)
    begun[3]!.end()
    await fifth
  })

  it('folders do not wait for each other', () => {
    const { begun, sync } = blockedSyncs()
    sync.sync('a')
    sync.sync('b')
    assert.deepEqual(
      begun.map(({ folder }) => folder),
      ['a', 'b'],
    )
  })

  it('a failed sync fails those who asked for it and nobody after', async () => {
    const { begun, sync } = blockedSyncs()
    const first = sync.sync('a')
    const second = sync.sync('a')
    begun[0]!.fail(new Error('disk gone'))
    await assert.rejects(first, /disk gone/)
    await new Promise(setImmediate)
    begun[1]!.end()
    await second
  })
})
