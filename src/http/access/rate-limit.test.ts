import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { testClock } from '../../../test/fakes/clock.ts'
import { testServer } from '../../../test/support/test-server.ts'
import { sqliteStore } from '../../store/sqlite/store.ts'
import { RateLimit } from './rate-limit.ts'

test('the limit of calls per minute applies to each key, over all endpoints', async () => {
  await using server = await testServer({ requests_per_minute: 3 })
  const first = await server.call('GET', '/v1/models')
  assert.equal(first.headers.get('x-ratelimit-limit-requests'), '3')
  assert.equal(first.headers.get('x-ratelimit-remaining-requests'), '2')
  assert.match(first.headers.get('x-ratelimit-reset-requests') ?? '', /^\d+s$/)
  await server.call('GET', '/v1/nowhere')
  await server.call('POST', '/v1/batches', { body: {} })
  const refused = await server.call('GET', '/v1/models')
  assert.equal(refused.outcome, '429 rate_limit_exceeded')
  const waitS = Number(refused.headers.get('retry-after'))
  assert.ok(waitS >= 1 && waitS <= 60)
  assert.equal(refused.headers.get('x-ratelimit-remaining-requests'), '0')
  assert.equal(refused.headers.get('x-should-retry'), null)
  const { key } = await server.issue()
  assert.equal((await server.call('GET', '/v1/models', { key })).status, 200)
  assert.equal((await server.call('GET', '/healthz', { key: null })).status, 200)
})

test('the keys of a project share what the project may send, sign-ins to the console included', async () => {
  await using server = await testServer({ requests_per_minute: 3, project_requests_per_minute: 5 })
  const { key } = await server.issue()
  const call = (options = {}) => server.call('GET', '/v1/models', options)
  for (const left of ['2', '1', '0'])
    assert.equal((await call()).headers.get('x-ratelimit-remaining-requests'), left)
  const first = await call({ key })
  const [limit, remaining] = ['limit', 'remaining'].map((name) =>
    first.headers.get(`x-ratelimit-${name}-requests`),
  )
  assert.deepEqual([limit, remaining], ['5', '1'], 'the project has fewer calls left than the key')
  const signIn = { key: null, body: { api_key: key }, headers: { 'x-offpeak-console': '1' } }
  assert.equal((await server.call('POST', '/console/session', signIn)).status, 200)
  const refused = await call({ key })
  assert.equal(refused.outcome, '429 rate_limit_exceeded')
  assert.match(String(refused.error.message), /a project may send 5 a minute/)
  const refusedSignIn = await server.call('POST', '/console/session', signIn)
  assert.equal(refusedSignIn.outcome, '429 rate_limit_exceeded')
  const { key: foreign } = await server.issue({ project: 'other' })
  assert.equal((await call({ key: foreign })).status, 200)
})

test('without a limit nothing is counted', async () => {
  await using server = await testServer({ requests_per_minute: null })
  const answer = await server.call('GET', '/v1/models')
  assert.equal(answer.headers.get('x-ratelimit-limit-requests'), null)
})

test('processes that share a database allow together no more calls than the limit', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-rate-'))
  let now = 1_000_000
  const store = sqliteStore({ path: join(folder, 'offpeak.db'), leaseNow: () => now })
  await store.migrate()
  // Their clocks are minutes apart; the window is the database's.
  const clocks = [testClock(now), testClock(now + 500_000)]
  const limits = clocks.map((clock) => new RateLimit(store, clock, 100))
  const callAll = async (): Promise<number> => {
    const calls = Array.from({ length: 150 }, (_, i) => limits[i % 2]!.count('key_1'))
    return (await Promise.all(calls)).filter((status) => status.apiError === undefined).length
  }
  assert.equal(await callAll(), 100)
  assert.equal(await callAll(), 0)
  now += 60_001
  for (const clock of clocks) await clock.advance(60_001)
  assert.equal(await callAll(), 100)
  await store.close()
  await rm(folder, { recursive: true, force: true })
})

test('what a process has not used of its calls within a minute is lost, and others may have used them', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-rate-'))
  const clock = testClock()
  const store = sqliteStore({ path: join(folder, 'offpeak.db'), leaseNow: clock.now })
  await store.migrate()
  const [idle, busy] = [new RateLimit(store, clock, 100), new RateLimit(store, clock, 100)]
  const allowed = async (limit: RateLimit, calls: number): Promise<number> => {
    let count = 0
    for (let i = 0; i < calls; i++) if ((await limit.count('key_1')).apiError === undefined) count++
    return count
  }
  // The process takes more than this one call.
  assert.equal(await allowed(idle, 1), 1)
  await clock.advance(59_999)
  assert.equal(await allowed(idle, 1), 1, 'a minute is not over')
  await clock.advance(1)
  assert.equal(await allowed(busy, 150), 100)
  assert.equal(await allowed(idle, 10), 0)
  await store.close()
  await rm(folder, { recursive: true, force: true })
})

test('a key that has used up its calls waits for the next one, not for the next minute', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-rate-'))
  let now = 1_000_000
  const store = sqliteStore({ path: join(folder, 'offpeak.db'), leaseNow: () => now })
  await store.migrate()
  const clock = testClock(now)
  const pass = async (ms: number): Promise<void> => {
    now += ms
    await clock.advance(ms)
  }
  for (const [limit, waitS] of [
    [6000, 1],
    [20, 3],
    [1, 60],
  ] as const) {
    const rate = new RateLimit(store, clock, limit)
    const call = () => rate.count(`key_${limit}`)
    for (let i = 0; i < limit; i++) assert.equal((await call()).apiError, undefined, `${limit}: ${i}`)
    const refused = await call()
    assert.equal(refused.apiError?.retryAfterS, waitS)
    assert.equal(refused.headers['x-ratelimit-remaining-requests'], '0')
    assert.equal(refused.headers['x-ratelimit-reset-requests'], '60s')
    await pass(waitS * 1000)
    assert.equal((await call()).apiError, undefined)
  }
  await store.close()
  await rm(folder, { recursive: true, force: true })
})

test('a key waits a minute at most once a clock that was ahead is set right', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-rate-'))
  const clock = { ...testClock(), now: () => now }
  let now = 100 * 24 * 3_600_000
  const store = sqliteStore({ path: join(folder, 'offpeak.db'), leaseNow: () => now })
  await store.migrate()
  const rate = new RateLimit(store, clock, 1)
  assert.equal((await rate.count('key_1')).apiError, undefined)
  assert.equal((await rate.count('key_1')).apiError?.retryAfterS, 60)
  now -= 40 * 24 * 3_600_000
  assert.equal((await rate.count('key_1')).apiError?.retryAfterS, 60)
  now += 60_001
  assert.equal((await rate.count('key_1')).apiError, undefined)
  await store.close()
  await rm(folder, { recursive: true, force: true })
})

test('few calls cost a write', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-rate-'))
  const store = sqliteStore({ path: join(folder, 'offpeak.db') })
  await store.migrate()
  let writes = 0
  const counting = {
    writeAsyncCommit: ((change) => {
      writes++
      return store.writeAsyncCommit(change)
    }) as typeof store.write,
  }
  const limit = new RateLimit(counting, testClock(Date.now()), 6_000)
  for (let i = 0; i < 1_000; i++) assert.equal((await limit.count('key_1')).apiError, undefined)
  assert.ok(writes <= 5, `${writes} writes`)
  await store.close()
  await rm(folder, { recursive: true, force: true })
})
