import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { Machine, type Tenant } from './machine.ts'

const MIN_RUN_MS = 60_000

class Server implements Tenant {
  readonly name: string
  readonly needs: Tenant['needs']
  load = 0
  isUrgent = false
  gpus: readonly string[] | null = null
  evicted = 0

  constructor(name: string, gpus: number, memory_bytes = 0) {
    this.name = name
    this.needs = { gpus, memory_bytes }
  }

  onRoom(gpus: readonly string[]): void {
    this.gpus = gpus
  }

  onEvicted(): void {
    this.evicted++
  }
}

function machine() {
  const clock = testClock()
  const spec = { gpus: ['0', '1'], memory_bytes: 100, run_ms_min: MIN_RUN_MS }
  return { clock, machine: new Machine(spec, clock) }
}

test('each engine gets GPUs of its own, and one too many waits for one that leaves', () => {
  const { machine: room } = machine()
  const [a, b, c] = [new Server('a', 1), new Server('b', 1), new Server('c', 1)]
  for (const one of [a, b, c]) {
    one.load = 1
    room.enter(one)
  }
  assert.deepEqual([a.gpus, b.gpus, c.gpus], [['0'], ['1'], null])
  assert.deepEqual(room.holders(c), ['a', 'b'])
  room.leave(a)
  assert.deepEqual(c.gpus, ['0'])
})

test('memory is shared as well', () => {
  const { machine: room } = machine()
  const [a, b] = [new Server('a', 0, 60), new Server('b', 0, 60)]
  a.load = 1
  room.enter(a)
  room.enter(b)
  assert.equal(b.gpus, null)
  assert.match(room.whyNever(new Server('c', 0, 101)) ?? '', /engines.memory/)
  assert.match(room.whyNever(new Server('c', 3)) ?? '', /needs 3 GPUs, and engines.gpus is 2/)
})

test('an engine with nothing to do makes room, but not before its minimum time', async () => {
  const { machine: room, clock } = machine()
  const [a, b] = [new Server('a', 2), new Server('b', 2)]
  room.enter(a)
  room.enter(b)
  assert.equal(a.evicted, 0)
  await clock.advance(MIN_RUN_MS)
  assert.equal(a.evicted, 1)
  assert.equal(b.gpus, null)
  room.leave(a)
  assert.deepEqual(b.gpus, ['0', '1'])
})

test('a busy engine makes room only for batches at risk, the least loaded first', async () => {
  const { machine: room, clock } = machine()
  const [busy, less, other] = [new Server('busy', 1), new Server('less', 1), new Server('other', 1)]
  busy.load = 9
  less.load = 2
  for (const one of [busy, less, other]) room.enter(one)
  await clock.advance(10 * MIN_RUN_MS)
  room.review()
  assert.deepEqual([busy.evicted, less.evicted], [0, 0])
  other.isUrgent = true
  room.review()
  room.review()
  assert.deepEqual([busy.evicted, less.evicted], [0, 1])
  room.leave(less)
  assert.deepEqual(other.gpus, ['1'])
})

test('engines whose batches are at risk keep their place', async () => {
  const { machine: room, clock } = machine()
  const [a, b] = [new Server('a', 2), new Server('b', 1)]
  for (const one of [a, b]) {
    one.load = 1
    one.isUrgent = true
    room.enter(one)
  }
  await clock.advance(10 * MIN_RUN_MS)
  room.review()
  assert.equal(a.evicted, 0)
})
