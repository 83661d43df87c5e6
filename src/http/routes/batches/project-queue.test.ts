import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ProjectQueue } from './project-queue.ts'

test('the work of one project runs sequentially, also after a failure; other projects do not wait for it', async () => {
  const turns = new ProjectQueue()
  const order: string[] = []
  const gate = Promise.withResolvers<void>()
  const first = turns.run('a', async () => {
    order.push('a1 begins')
    await gate.promise
    order.push('a1 fails')
    throw new Error('no')
  })
  const second = turns.run('a', async () => order.push('a2'))
  await turns.run('b', async () => order.push('b'))
  gate.resolve()
  await assert.rejects(first, /no/)
  await second
  assert.deepEqual(order, ['a1 begins', 'b', 'a1 fails', 'a2'])
})
