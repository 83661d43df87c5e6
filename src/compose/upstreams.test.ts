import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { testUpstream } from '../../test/fakes/upstream.ts'
import { ResponseMemory } from '../backends/response-memory.ts'
import { loadConfig } from '../config/load.ts'
import { type Call, ModelServer, type Upstream } from '../servers/upstream.ts'
import { ConfiguredUpstreams } from './upstreams.ts'

const MODELS = `[{id: m, upstreams: [
  {type: openai, base_url: "http://pods.test/v1", discover: dns}, {type: openai, base_url: "http://one.test/v1"}]}]`

test('lines in flight leave files to the stores, however many addresses a name has', async () => {
  const config = loadConfig({ env: { OFFPEAK_MODELS: MODELS }, cwd: import.meta.dirname })
  let addresses: readonly string[] = []
  const configured = new ConfiguredUpstreams(config, {
    budget: new ResponseMemory(1),
    clock: testClock(),
    log: { info() {}, warn() {}, error() {} },
    addressesOf: () => addresses,
    openFilesMax: () => 48 + 120,
  })
  const first = configured.of(config).get('m') ?? []
  assert.deepEqual(
    first.map((one) => one.placesAllowed(0)),
    [60, 60],
  )
  addresses = ['127.0.0.2', '127.0.0.3', '127.0.0.4']
  const later = configured.of(config).get('m') ?? []
  assert.deepEqual(
    later.map((one) => one.placesAllowed(0)),
    [30, 30, 30, 30],
  )
  assert.equal(later[3], first[1], 'what is known of a server is kept')
  await Promise.all(later.map((one) => one.close()))
})

interface Settings {
  addresses?: readonly string[]
  upstreams?: string
}

/** The upstreams of one model by each given configuration, and a line that is sent to one of them. */
function configured(
  t: TestContext,
  first = '{type: openai, base_url: "http://one.test/v1", concurrency_max: 4}',
) {
  const clock = testClock()
  let addresses: readonly string[] = []
  const load = (upstreams: string) =>
    loadConfig({ env: { OFFPEAK_MODELS: `[{id: m, upstreams: [${upstreams}]}]` }, cwd: import.meta.dirname })
  const made = new ConfiguredUpstreams(load(first), {
    budget: new ResponseMemory(1),
    clock,
    log: { info() {}, warn() {}, error() {} },
    addressesOf: () => addresses,
  })
  const opened: Upstream[] = []
  t.after(() => Promise.all(opened.map((one) => one.close())))
  let upstreams = first
  return {
    clock,
    take(settings: Settings = {}): Upstream[] {
      addresses = settings.addresses ?? addresses
      upstreams = settings.upstreams ?? upstreams
      const found = made.of(load(upstreams)).get('m') ?? []
      opened.push(...found)
      return found
    },
    send(upstream: Upstream): Call {
      const call: Call = {
        ...{ batch_id: 'b', line: {}, missedBefore: false, probing: null, inFlight: 0, cohort: null },
        sentAt: clock.now(),
      }
      upstream.begin(call)
      return call
    },
  }
}

const SETTINGS = [
  'timeout: 5m',
  'headers: {x-team: a}',
  'concurrency_max: 4',
  'model: n',
  'connections: shared',
  'priority: deadline',
]

test('a server with other settings is the same server: its lines in flight, its throttling and its circuit', (t) => {
  const { clock, take, send } = configured(t)
  let [server] = take()
  assert.ok(server)
  const calls = [1, 2, 3, 4].map(() => ({ server: server!, call: send(server!) }))
  for (const setting of SETTINGS) {
    const max = setting.startsWith('concurrency') ? '' : 'concurrency_max: 4, '
    const [next] = take({ upstreams: `{type: openai, base_url: "http://one.test/v1/", ${max}${setting}}` })
    assert.ok(next)
    assert.equal(next.limit.inFlight, 4, setting)
    assert.equal(next.freePlaces(clock.now()), 0, setting)
    server = next
  }
  for (const max of [3, 2, 1]) {
    const [next] = take({
      upstreams: `{type: openai, base_url: "http://one.test/v1", concurrency_max: ${max}}`,
    })
    assert.equal(next?.freePlaces(clock.now()), 0)
    server = next!
  }
  for (const { server: of, call } of calls) of.took(call, clock.now())
  assert.equal(server.limit.inFlight, 0)
  const { server: of } = calls[0]!
  const only = send(of)
  assert.equal(server.limit.inFlight, 1)
  of.end(only, { kind: 'throttled', status: 429, reason: '429', retry_after_ms: 20_000 }, clock.now())
  const [last] = take({ upstreams: '{type: openai, base_url: "http://one.test/v1", timeout: 7m}' })
  assert.equal(last?.opensAt(clock.now()), clock.now() + 20_000)
  assert.ok(!last?.circuit.closed)
})

test('another address, another type and another model are other servers', (t) => {
  const { take, send } = configured(t)
  const [server] = take()
  send(server!)
  const [other] = take({ upstreams: '{type: openai, base_url: "http://two.test/v1"}' })
  assert.equal(other?.limit.inFlight, 0)
  const [batches] = take({ upstreams: '{type: openai-batch, base_url: "http://one.test/v1"}' })
  assert.equal(batches?.limit.inFlight, 0)
  const twice = take({
    upstreams:
      '{type: openai, base_url: "http://one.test/v1"}, {type: openai, base_url: "http://one.test/v1"}',
  })
  assert.deepEqual(
    twice.map(({ limit }) => limit.inFlight),
    [1, 0],
  )
})

test('an address that discovery leaves out and names again is the same server, for a while', async (t) => {
  const { clock, take, send } = configured(
    t,
    '{type: openai, base_url: "http://pods.test/v1", discover: dns}',
  )
  const [unresolved] = take()
  send(unresolved!)
  const [one, two] = take({ addresses: ['127.0.0.2', '127.0.0.3'] })
  assert.deepEqual([one?.limit.inFlight, two?.limit.inFlight], [1, 0])
  const call = send(two!)
  take({ addresses: ['127.0.0.2'] })
  const again = take({ addresses: ['127.0.0.2', '127.0.0.3'] })[1]
  assert.equal(again?.limit.inFlight, 1)
  assert.equal(again?.circuit, two?.circuit)
  take({ addresses: ['127.0.0.2'] })
  two?.took(call, clock.now())
  await clock.advance(11 * 60_000)
  take()
  assert.notEqual(take({ addresses: ['127.0.0.2', '127.0.0.3'] })[1]?.circuit, two?.circuit)
})

test('upstreams of one server ask it once whether it is up, however many models it serves', async (t) => {
  await using server = await testUpstream()
  let asked = 0
  server.server.on('request', () => asked++)
  const one = `{type: openai, base_url: "${server.base_url}"}`
  const { clock, take } = configured(t)
  const upstreams = take({ upstreams: Array.from({ length: 20 }, () => one).join() })
  const probe = () =>
    Promise.all(upstreams.map((upstream) => upstream instanceof ModelServer && upstream.backend.probe?.()))
  for (const found of await probe()) assert.ok(typeof found === 'object' && found.isUp)
  assert.equal(asked, 1)
  await clock.advance(30_000)
  await probe()
  assert.equal(asked, 2)
})
