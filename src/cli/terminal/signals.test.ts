import assert from 'node:assert/strict'
import { EventEmitter } from 'node:events'
import { test } from 'node:test'
import { testClock } from '../../../test/fakes/clock.ts'
import { interruption } from './signals.ts'

class Exited extends Error {}

class Source extends EventEmitter {
  ppid = 100
  exit(code: number): never {
    throw new Exited(String(code))
  }
}

test('the first signal starts a graceful shutdown, the second ends the process, however soon it comes', () => {
  const source = new Source()
  const signal = interruption(source, { clock: testClock(), underNpm: false })()
  assert.ok(!signal.aborted)
  source.emit('SIGTERM')
  assert.ok(signal.aborted)
  assert.throws(() => source.emit('SIGTERM'), new Exited('130'))
})

test('under npm, a forwarded Ctrl-C does not count as a second signal', async () => {
  const source = new Source()
  const clock = testClock()
  const signal = interruption(source, { clock, underNpm: true })()
  source.emit('SIGINT')
  source.emit('SIGINT')
  assert.ok(signal.aborted)
  await clock.advance(1_000)
  assert.throws(() => source.emit('SIGINT'), new Exited('130'))
})

test('under npm, the exit of the parent process counts as a signal', async () => {
  const source = new Source()
  const clock = testClock()
  const signal = interruption(source, { clock, underNpm: true })()
  await clock.advance(10_000)
  assert.ok(!signal.aborted)
  source.ppid = 1
  await clock.advance(1_000)
  assert.ok(signal.aborted)
  assert.equal(clock.waiting, 0)
})

test('without npm, a process continues after the exit of its parent', async () => {
  const source = new Source()
  const clock = testClock()
  const signal = interruption(source, { clock, underNpm: false })()
  source.ppid = 1
  await clock.advance(10_000)
  assert.ok(!signal.aborted)
})

test('without a handler, signals end the process as usual', () => {
  const source = new Source()
  interruption(source, { clock: testClock(), underNpm: true })
  assert.equal(source.listenerCount('SIGTERM'), 0)
})
