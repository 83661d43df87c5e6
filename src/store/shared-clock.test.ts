import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { testClock } from '../../test/fakes/clock.ts'
import { type SharedClock, sharedClock } from './shared-clock.ts'
import { sqliteStore } from './sqlite/store.ts'

const NOON = Date.UTC(2026, 10, 21, 12)
const ASK_EVERY_MS = 5_000

const folder = mkdtempSync(join(tmpdir(), 'offpeak-shared-clock-'))
/** The database's time ahead, the durations of its next answers, and whether it fails. */
let database = { ahead_ms: NOON, take_ms: [0], fails: false }
/** A monotonic clock, in fractions of ms, with an origin of its own. */
const ticks = testClock(1_234.5)
let waited_ms = 0
const base = { ...ticks, steady: () => ticks.now() + waited_ms }
const store = sqliteStore({
  path: join(folder, 'offpeak.db'),
  leaseNow() {
    if (database.fails) throw new Error('the database is unavailable')
    waited_ms += database.take_ms.shift() ?? 0
    return Math.floor(base.steady() + database.ahead_ms)
  },
})
after(async () => {
  await store.close()
  rmSync(folder, { recursive: true, force: true })
})

async function clockNow(take_ms: number[] = []): Promise<SharedClock & Disposable> {
  database = { ahead_ms: NOON, take_ms, fails: false }
  const clock = await sharedClock(store, base)
  return { ...clock, [Symbol.dispose]: () => clock.stop() }
}

async function askedAgain(): Promise<void> {
  await ticks.advance(ASK_EVERY_MS)
  // The answer takes a few turns.
  for (let turn = 0; turn < 5; turn++) await setImmediate()
}

const timeOfDatabase = (): number => Math.floor(base.steady() + database.ahead_ms)

function assertNear(clock: SharedClock, expected: number, off_ms = 1): void {
  assert.ok(Math.abs(clock.now() - expected) <= off_ms, `${clock.now()} is not near ${expected}`)
}

describe('the clock that all share', () => {
  test('tells the time of the database in whole milliseconds, wherever it counts from', async () => {
    using clock = await clockNow()
    assertNear(clock, timeOfDatabase())
    await ticks.advance(1_500)
    assertNear(clock, timeOfDatabase())
    assert.ok(Number.isInteger(clock.now()))
  })

  test('of several answers at the start it takes the one that came soonest', async () => {
    // The first has to wait for a connection.
    using clock = await clockNow([4_000, 20, 700])
    assertNear(clock, timeOfDatabase(), 11)
  })

  test('it follows the database, forward and back, and leaves small differences alone', async () => {
    using clock = await clockNow()
    for (const moved_ms of [3_600_000, -7_200_000, 300]) {
      database.ahead_ms += moved_ms
      await askedAgain()
      assertNear(clock, timeOfDatabase())
    }
    database.ahead_ms += 150
    await askedAgain()
    assertNear(clock, timeOfDatabase() - 150)
  })

  test('an answer that was long under way proves only what is beyond doubt', async () => {
    using clock = await clockNow()
    database.take_ms = [8_000, 8_000]
    await askedAgain()
    assertNear(clock, timeOfDatabase())
    database.ahead_ms += 3_600_000
    await askedAgain()
    assertNear(clock, timeOfDatabase(), 4_001)
  })

  test('while the database is unavailable the clock continues, and the database is read again', async () => {
    using clock = await clockNow()
    const before = timeOfDatabase()
    database.ahead_ms += 60_000
    database.fails = true
    await askedAgain()
    assertNear(clock, before + ASK_EVERY_MS)
    database.fails = false
    await askedAgain()
    assertNear(clock, timeOfDatabase())
  })

  test('once stopped it asks no more', async () => {
    const clock = await clockNow()
    assert.equal(ticks.waiting, 1)
    clock.stop()
    assert.equal(ticks.waiting, 0)
  })

  test('a database that cannot be asked at the start is an error', async () => {
    database.fails = true
    await assert.rejects(sharedClock(store, base), /the database is unavailable/)
  })
})
