import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { StoreRetries } from './store-retries.ts'

function makeRetries() {
  const clock = testClock()
  const logged: string[] = []
  const log = { info() {}, warn() {}, error: (_: object, message: string): void => void logged.push(message) }
  return { clock, logged, retries: new StoreRetries({ clock, log }) }
}

test('work on a failing store is retried until it succeeds, and failingSince is set meanwhile', async () => {
  const { clock, logged, retries } = makeRetries()
  const begun = clock.now()
  let attempts = 0
  const done = retries.retryUntilStored('commit', async () => {
    if (++attempts < 3) throw new Error('disk full')
    return 'stored'
  })
  await clock.advance(0)
  assert.equal(retries.failingSince, begun)
  await clock.advance(200 + 400)
  assert.equal(await done, 'stored')
  assert.equal(retries.failingSince, null)
  assert.equal(attempts, 3)
  assert.match(logged[0] ?? '', /committing results failed; trying again in 200 ms/)
})

test('a final error is thrown at once', async () => {
  const { clock, retries } = makeRetries()
  const refused = new Error('refused')
  const attempt = retries.retryUntilStored(
    'commit',
    () => Promise.reject(refused),
    (error) => error === refused,
  )
  await assert.rejects(attempt, refused)
  assert.equal(clock.waiting, 0)
})
