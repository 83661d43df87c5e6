import assert from 'node:assert/strict'
import { test } from 'node:test'
import { SyncBehind } from './disk-blobs.ts'

const MIB = 1024 * 1024

/** Syncs that end when the test ends them. */
function syncs() {
  const begun: PromiseWithResolvers<void>[] = []
  const sync = (): Promise<void> => {
    const one = Promise.withResolvers<void>()
    begun.push(one)
    return one.promise
  }
  return { begun, behind: new SyncBehind(sync) }
}

test('a short file is synced once, at its end', async () => {
  const { begun, behind } = syncs()
  behind.wrote(MIB)
  assert.equal(begun.length, 0)
  const end = behind.end()
  await Promise.resolve()
  begun[0]?.resolve()
  await end
  assert.equal(begun.length, 1)
})

test('a long file is synced while it is written, one sync at a time, and once more at its end', async () => {
  const { begun, behind } = syncs()
  for (let i = 0; i < 100; i++) behind.wrote(MIB)
  assert.equal(begun.length, 1)
  let over = false
  const end = behind.end().then(() => {
    over = true
  })
  begun[0]?.resolve()
  while (begun.length < 2) await Promise.resolve()
  assert.equal(over, false)
  begun[1]?.resolve()
  await end
})

test('a sync that failed on the way fails the end, whatever a later one says', async () => {
  const { begun, behind } = syncs()
  behind.wrote(16 * MIB)
  begun[0]?.reject(new Error('the disk is full'))
  await new Promise(setImmediate)
  behind.wrote(16 * MIB)
  begun[1]?.resolve()
  await assert.rejects(behind.end(), /the disk is full/)
})
