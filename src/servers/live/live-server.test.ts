import assert from 'node:assert/strict'
import test from 'node:test'
import { trafficOf } from '../../backends/openai/server-traffic.ts'
import { LiveServer } from './live-server.ts'

test('a back-off is counted once, however long it lasts', async () => {
  const server = new LiveServer({ waiting_max: 0, cache_max: 0.85 })
  let now = 0
  const read = async (running: number, waiting: number): Promise<number> => {
    now += 500
    await server.read(
      async () => ({ running, waiting, cache: null, tokens: null, steps: null }),
      { inFlight: 0, workers: 0 },
      () => now,
    )
    return server.backOffs
  }
  assert.equal(await read(0, 0), 0)
  server.begin()
  server.begin()
  assert.equal(await read(2, 0), 0)
  for (let i = 0; i < 5; i++) assert.equal(await read(8, 6), 1)
  server.end(100, 10)
  server.end(100, 10)
  assert.equal(await read(0, 0), 1)
})

/** An engine of 64 seats with some other requests, as its /metrics shows it; `absurd` replaces values of one reading. */
function world() {
  const server = new LiveServer({ waiting_max: 0, cache_max: 0.85 })
  let now = 0
  let tokens = 0
  let inFlight = 0
  const read = async (absurd: Readonly<Record<string, string>> = {}): Promise<void> => {
    now += 500
    const places = Math.min(1_000, server.places(inFlight, now))
    for (; inFlight < places; inFlight++) server.begin()
    for (; inFlight > places; inFlight--) server.end(1_000, 50)
    const running = Math.min(64, inFlight + 8)
    const waiting = inFlight + 8 - running
    tokens += (running * 500) / (20 + 0.01 * running)
    const values = {
      num_requests_running: running,
      num_requests_waiting: waiting,
      kv_cache_usage_perc: running / 1000,
    }
    const shown = { ...values, generation_tokens_total: tokens, ...absurd }
    const text = Object.entries(shown).map(([name, value]) => `vllm:${name}{engine="0"} ${value}\n`)
    await server.read(
      async () => trafficOf(text.join('')),
      { inFlight: 0, workers: 0 },
      () => now,
    )
  }
  const readings = async (count: number): Promise<void> => {
    for (let i = 0; i < count; i++) await read()
  }
  return { server, read, readings }
}

const METRICS = [
  'num_requests_running',
  'num_requests_waiting',
  'kv_cache_usage_perc',
  'generation_tokens_total',
]
const ABSURD = [
  '1e155',
  '1e308',
  '+Inf',
  '18446744073709551616',
  '1e9',
  '50000',
  '16000',
  '2000',
  '-1',
  '-1e155',
]

for (const metric of METRICS)
  for (const value of ABSURD)
    test(`${metric} ${value}, once or ten times, leaves the share where it was`, async () => {
      for (const times of [1, 10]) {
        const usual = world()
        await usual.readings(600)
        const { server, read, readings } = world()
        await readings(600)
        for (let i = 0; i < times; i++) await read({ [metric]: value })
        await readings(times === 1 ? 60 : 900)
        const [share, before] = [server.share.current, usual.server.share.current]
        assert.ok(before > 20)
        assert.ok(Math.abs(share - before) <= 0.15 * before, `${share} after ${times}, ${before} without`)
      }
    })

test('readings that no server can have are counted, and those without a value are not', async () => {
  const { server, read, readings } = world()
  await readings(10)
  assert.equal(server.rejected, 0)
  for (const value of ['1e155', '-1', '+Inf']) await read({ num_requests_running: value })
  assert.equal(server.rejected, 3)
  await read({ kv_cache_usage_perc: '7' })
  assert.equal(server.rejected, 4)
  assert.equal(server.traffic?.cache, null)
  await read({ generation_tokens_total: '1e300' })
  assert.equal(server.rejected, 5)
  await read({ num_requests_running: 'NaN' })
  assert.equal(server.rejected, 5)
  assert.equal(server.traffic, null)
})

test('the first reading that is absurd keeps nobody from sending', async () => {
  const { server, read, readings } = world()
  await read({ num_requests_running: '1e155' })
  await readings(600)
  assert.ok(server.share.current > 20, `${server.share.current}`)
})

test('a burst out of all proportion is obeyed at once, and learned when it has lasted a minute', async () => {
  const { server, read, readings } = world()
  await readings(600)
  for (let i = 0; i < 119; i++) {
    await read({ num_requests_waiting: '900' })
    assert.equal(server.share.current, 0)
  }
  assert.equal(server.rejected, 119)
  for (let i = 0; i < 10; i++) await read({ num_requests_waiting: '900' })
  assert.equal(server.rejected, 120)
})

test('lines make room for a burst that is not learned yet, though all of it runs', async () => {
  const { server, read, readings } = world()
  await readings(600)
  const before = server.share.current
  await read({ num_requests_running: '400' })
  assert.equal(server.rejected, 1)
  assert.ok(server.share.current < before / 2, `${server.share.current} of ${before}`)
})

test('others that come and leave as they use to are learned at once', async () => {
  const { server, read } = world()
  for (const waiting of [0, 200, 0, 1_800, 0, 1_800]) await read({ num_requests_waiting: `${waiting}` })
  assert.equal(server.rejected, 0)
})

/** A server of which a Prometheus writes down every 15 s how much it runs; it is asked every three seconds. */
function scraped() {
  const server = new LiveServer({ waiting_max: 0, cache_max: 0.85 })
  let now = 1_000_000
  const look = async (running: number, at: number, waiting = 0): Promise<void> => {
    const traffic = { running, waiting, cache: null, tokens: null, steps: null, at }
    await server.read(
      async () => traffic,
      { inFlight: 0, workers: 0 },
      () => now,
    )
  }
  return { server, look, at: () => now, pass: (ms: number) => (now += ms) }
}

test('lines that were sent after a Prometheus saw the server are not subtracted from what it saw', async () => {
  const { server, look, at, pass } = scraped()
  await look(10, at())
  const first = at()
  pass(3_000)
  await look(10, first)
  const places = server.places(0, at())
  assert.ok(places >= 2)
  for (let i = 0; i < places; i++) server.begin()
  // Written down before the lines were sent, and read afterwards.
  pass(3_000)
  await look(10, first + 2_000)
  const { partForLines, current } = server.share
  assert.equal(partForLines, current / (current + 10), 'all ten are others')
})

test('a reading that is seen again moves nothing, and such a server is asked every three seconds', async () => {
  const { server, look, at, pass } = scraped()
  await look(10, at())
  const taken = at()
  assert.equal(server.isDue(at() + 1_000, true), false)
  assert.equal(server.isDue(at() + 3_000, true), true)
  pass(3_000)
  const places = server.places(0, at())
  assert.ok(places > 0)
  // The same sample, whatever it says, is no new one.
  await look(10, taken, 50)
  assert.equal(server.places(0, at()), places)
  await look(10, taken + 1_000, 50)
  assert.equal(server.places(0, at()), 0)
})
