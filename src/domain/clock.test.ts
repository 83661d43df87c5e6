import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { every, sleep, systemClock, unixSeconds } from './clock.ts'

describe('the system clock', () => {
  test('runs a callback, and not one that was cancelled', async () => {
    const ran: string[] = []
    const cancel = systemClock.after(0, () => ran.push('cancelled'))
    cancel()
    await new Promise<void>((resolve) => {
      systemClock.after(1, () => {
        ran.push('kept')
        resolve()
      })
    })
    assert.deepEqual(ran, ['kept'])
  })

  test('waits as long as asked where setTimeout alone would fire at once', (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] })
    const days30 = 30 * 86_400_000
    let fired = false
    systemClock.after(days30, () => {
      fired = true
    })
    t.mock.timers.tick(2 ** 31 - 1)
    assert.equal(fired, false)
    t.mock.timers.tick(days30 - (2 ** 31 - 1) - 1)
    assert.equal(fired, false)
    t.mock.timers.tick(1)
    assert.equal(fired, true)
  })

  test('can be told to stop in the middle of a long wait', (t) => {
    t.mock.timers.enable({ apis: ['setTimeout'] })
    let fired = false
    const cancel = systemClock.after(2 ** 32, () => {
      fired = true
    })
    t.mock.timers.tick(2 ** 31)
    cancel()
    t.mock.timers.tick(2 ** 31)
    t.mock.timers.tick(2 ** 31)
    assert.equal(fired, false)
  })
})

describe('sleep', () => {
  test('ends when its time has come, not before', async () => {
    const clock = testClock()
    let awake = false
    const slept = sleep(clock, 1000).then(() => {
      awake = true
    })
    await clock.advance(999)
    assert.equal(awake, false)
    await clock.advance(1)
    assert.equal(awake, true)
    await slept
  })

  test('ends at once, and leaves no timer behind, when the signal aborts', async () => {
    const clock = testClock()
    const stop = new AbortController()
    const slept = sleep(clock, 1000, stop.signal)
    stop.abort()
    await slept
    assert.equal(clock.waiting, 0)
  })

  test('does not begin under a signal that has aborted already', async () => {
    const clock = testClock()
    await sleep(clock, 1000, AbortSignal.abort())
    assert.equal(clock.waiting, 0)
  })

  test('leaves no listener on a signal that outlives it', async () => {
    const clock = testClock()
    const stop = new AbortController()
    let listeners = 0
    const { signal } = stop
    const [add, remove] = [signal.addEventListener.bind(signal), signal.removeEventListener.bind(signal)]
    signal.addEventListener = (...args: Parameters<typeof add>) => {
      listeners++
      add(...args)
    }
    signal.removeEventListener = (...args: Parameters<typeof remove>) => {
      listeners--
      remove(...args)
    }
    const slept = sleep(clock, 5, signal)
    assert.equal(listeners, 1)
    await clock.advance(5)
    await slept
    assert.equal(listeners, 0)
  })
})

describe('the clock of the tests', () => {
  test('runs what is due in the order of time, and in the order set among equals', async () => {
    const clock = testClock(1000)
    const ran: string[] = []
    const note = (what: string) => () => ran.push(`${what} at ${clock.now()}`)
    clock.after(20, note('c'))
    clock.after(10, note('a'))
    clock.after(10, note('b'))
    clock.after(31, note('late'))
    await clock.advance(30)
    assert.deepEqual(ran, ['a at 1010', 'b at 1010', 'c at 1020'])
    assert.equal(clock.now(), 1030)
  })

  test('lets a loop that sleeps take every one of its turns', async () => {
    const clock = testClock(0)
    const turns: number[] = []
    const loop = (async () => {
      while (turns.length < 4) {
        await sleep(clock, 25)
        await Promise.resolve()
        turns.push(clock.now())
      }
    })()
    await clock.advance(100)
    await loop
    assert.deepEqual(turns, [25, 50, 75, 100])
  })

  test('does not run what was cancelled', async () => {
    const clock = testClock()
    const cancel = clock.after(1, () => assert.fail('was cancelled'))
    cancel()
    await clock.advance(10)
    assert.equal(clock.waiting, 0)
  })

  test('does not run backwards', async () => {
    await assert.rejects(testClock().advance(-1), RangeError)
  })
})

test('timestamps are whole seconds, rounded down', () => {
  assert.equal(unixSeconds(1_700_000_000_999), 1_700_000_000)
})

test('calls come again after the last one has ended, until one returns false or they are ended', async () => {
  const clock = testClock()
  let calls = 0
  const call = Promise.withResolvers<void>()
  const end = every(clock, 10, async () => {
    calls++
    await call.promise
  })
  await clock.advance(30)
  assert.deepEqual([calls, clock.waiting], [1, 0])
  let hasEnded = false
  const ended = end().then(() => {
    hasEnded = true
  })
  await clock.advance(10)
  assert.equal(hasEnded, false)
  call.resolve()
  await ended
  await clock.advance(30)
  assert.deepEqual([calls, clock.waiting], [1, 0])

  let left = 3
  every(clock, 10, () => --left > 0)
  await clock.advance(100)
  assert.deepEqual([left, clock.waiting], [0, 0])
})

test('calls go on after one that fails, which is told', async () => {
  const clock = testClock()
  const told: string[] = []
  let calls = 0
  const look = (): void => {
    if (++calls < 3) throw new Error(`call ${calls}`)
  }
  const end = every(clock, 10, look, (error) => told.push(String(error)))
  await clock.advance(30)
  await end()
  assert.deepEqual([calls, told], [3, ['Error: call 1', 'Error: call 2']])
})
