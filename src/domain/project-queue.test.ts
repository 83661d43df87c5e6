import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ProjectQueue, QueueFull } from './project-queue.ts'

/** Runs operations that end on command, and records the order in which they begin. */
class Operations {
  readonly begun: string[] = []
  readonly #queue: ProjectQueue
  readonly #ends = new Map<string, () => void>()
  readonly #done = new Map<string, Promise<void>>()

  constructor(queue: ProjectQueue) {
    this.#queue = queue
  }

  /** Adds operations; the first letter of a name is its project. */
  async add(...names: string[]): Promise<void> {
    for (const name of names)
      this.#done.set(
        name,
        this.#queue.run(name.charAt(0), async () => {
          this.begun.push(name)
          const { promise, resolve } = Promise.withResolvers<void>()
          this.#ends.set(name, resolve)
          await promise
        }),
      )
    await soon()
  }

  /** Ends a running operation, and waits until others have begun. */
  async end(name: string): Promise<void> {
    this.#ends.get(name)?.()
    await this.#done.get(name)
    await soon()
    await soon()
  }
}

function soon(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

test('the work of one project runs sequentially, also after a failure; other projects do not wait for it', async () => {
  const turns = new ProjectQueue({ atOnce: Number.POSITIVE_INFINITY, perProject: 1 })
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

test('projects take turns, however many operations one of them has in the queue', async () => {
  const work = new Operations(new ProjectQueue({ atOnce: 1, perProject: 1 }))
  await work.add('a1', 'a2', 'a3', 'a4', 'b1', 'b2', 'c1')
  for (const name of ['a1', 'b1', 'c1', 'a2', 'b2', 'a3']) await work.end(name)
  assert.deepEqual(work.begun, ['a1', 'b1', 'c1', 'a2', 'b2', 'a3', 'a4'])
})

test('a project takes half of the places at most, so others begin at once', async () => {
  const work = new Operations(new ProjectQueue({ atOnce: 4, perProject: 9 }))
  await work.add('a1', 'a2', 'a3', 'b1', 'c1', 'd1')
  assert.deepEqual(work.begun, ['a1', 'a2', 'b1', 'c1'])
  await work.end('b1')
  assert.deepEqual(work.begun.slice(4), ['d1'])
  await work.end('c1')
  await work.end('d1')
  assert.deepEqual(work.begun.slice(5), [])
  await work.end('a1')
  assert.deepEqual(work.begun.slice(5), ['a3'])
})

test('what waits leaves the queue when its caller does, and no more waits than may', async () => {
  const queue = new ProjectQueue({ atOnce: 1, perProject: 1, waitingMax: 2 })
  const work = new Operations(queue)
  await work.add('a1', 'a2')
  const left = new AbortController()
  const waiting = queue.run('a', async () => work.begun.push('never'), left.signal)
  await assert.rejects(
    queue.run('a', async () => {}),
    QueueFull,
  )
  left.abort(new Error('it left'))
  await assert.rejects(waiting, /it left/)
  await assert.rejects(
    queue.run('b', async () => {}, left.signal),
    /it left/,
  )
  await work.add('a3')
  await work.end('a1')
  await work.end('a2')
  await work.end('a3')
  assert.deepEqual(work.begun, ['a1', 'a2', 'a3'])
})
