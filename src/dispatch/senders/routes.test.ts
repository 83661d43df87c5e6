import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { BatchApi } from '../../backends/batch-api/batch-api.ts'
import { OpeningHours } from '../../domain/hours.ts'
import { type Call, ModelServer, type Upstream } from '../../servers/upstream.ts'
import { BatchApiUpstream } from './batch-apis/batch-api-upstream.ts'
import { chooseServer, Route, type RoutedLine, type Spill } from './routes.ts'

const SPILL: Spill = { whenDownMs: 1_000, whenAtRisk: true }
const NEVER: Spill = { whenDownMs: null, whenAtRisk: false }
const LINE: RoutedLine = { isAtRisk: false, avoid: null, isLate: false }
/** On a Monday, when every upstream with hours here is closed. */
const CLOSED = [{ days: [1, 2, 3, 4, 5, 6, 7], from: 0, to: 60, timezone: 'UTC', concurrency_max: 8 }]
const NOON = Date.UTC(2026, 0, 5, 12)

function server(name: string, tier: number, hours: OpeningHours | null = null): ModelServer {
  const backend = { name, send: async () => assert.fail('nothing is sent'), close: async () => {} }
  return new ModelServer({ backend, concurrency_max: 10, modelAlias: null, tier, hours })
}

function batchApi(tier: number): BatchApiUpstream {
  const api = { close: async () => {} } as BatchApi
  return new BatchApiUpstream({ name: 'api', api, concurrency_max: 4, modelAlias: null, tier })
}

function callAt(now: number): Call {
  return {
    batch_id: 'b',
    line: {},
    sentAt: now,
    missedBefore: false,
    probing: null,
    inFlight: 0,
    cohort: null,
  }
}

/** Nothing reaches it from now on. */
function breakDown(upstream: Upstream, now: number): void {
  for (let i = 0; i < 8; i++) {
    const call = callAt(now)
    upstream.begin(call)
    const result = { kind: 'failed', status: null, code: 'upstream_unavailable', reason: 'refused' } as const
    upstream.end(call, { ...result, unreachable: true }, now)
  }
}

function names(upstreams: readonly Upstream[]): string {
  return upstreams.map(({ name }) => name).join(' ')
}

test('a tier is in use when everything below it has been down for long enough', () => {
  const [local, spare, hosted] = [server('local', 0), server('spare', 0), server('hosted', 1)]
  const route = new Route([hosted, local, spare], SPILL)
  breakDown(local, 5_000)
  assert.equal(names(route.inUse(9_000)), 'local spare')
  breakDown(spare, 5_500)
  assert.deepEqual([names(route.inUse(6_499)), route.nextAt(6_499)], ['local spare', 6_500])
  assert.equal(names(route.inUse(6_500)), 'local spare hosted')
  const probe = callAt(6_501)
  local.begin(probe)
  local.took(probe, 6_501)
  assert.equal(names(route.inUse(6_502)), 'local spare')
})

test('an upstream outside its hours is not down, and does not keep a tier from counting as down', () => {
  const closed = server('closed', 0, new OpeningHours(CLOSED))
  const [local, hosted] = [server('local', 0), server('hosted', 1)]
  assert.equal(names(new Route([closed, hosted], SPILL).inUse(NOON)), 'closed')
  breakDown(local, NOON - 5_000)
  assert.equal(names(new Route([closed, local, hosted], SPILL).inUse(NOON)), 'closed local hosted')
})

test('each kind of spill-over can be switched off', () => {
  const [local, hosted] = [server('local', 0), server('hosted', 1)]
  breakDown(local, 0)
  const never = new Route([local, hosted], NEVER)
  assert.equal(names(never.inUse(1e9)), 'local')
  assert.deepEqual(never.serversForAtRisk(1e9), [])
  assert.equal(never.nextAt(1e9), Number.POSITIVE_INFINITY)
  const atRisk = new Route([local, hosted], { whenDownMs: null, whenAtRisk: true })
  assert.equal(names(atRisk.serversForAtRisk(1e9).flat()), 'hosted')
})

test('a line goes to the lowest tier with a place, there to the emptiest server, not where it failed last', () => {
  const [busy, idle, hosted] = [server('busy', 0), server('idle', 0), server('hosted', 1)]
  const fill = (one: ModelServer, count: number): void => {
    for (let i = 0; i < count; i++) one.begin(callAt(0))
  }
  const choose = (avoid: ModelServer | null = null) => chooseServer([[busy, idle], [hosted]], avoid, 0)?.name
  fill(busy, 8)
  fill(idle, 2)
  assert.equal(choose(), 'idle')
  assert.equal(choose(idle), 'busy')
  fill(busy, 2)
  assert.equal(choose(idle), 'idle')
  fill(idle, 8)
  assert.equal(choose(), 'hosted')
  fill(hosted, 10)
  assert.equal(choose(), undefined)
})

test('of a tier with both, model servers get what they can soon send, and batch APIs the rest', () => {
  const route = new Route([server('s', 0), batchApi(0)])
  assert.equal(
    route.prefersServers(LINE, () => true, 0),
    true,
  )
  assert.equal(
    route.prefersServers(LINE, () => false, 0),
    false,
  )
})

test('the lower tier decides who gets a line, unless it is blocked and the next one is in use', () => {
  const [local, api] = [server('s', 0), batchApi(1)]
  const route = new Route([local, api], SPILL)
  assert.equal(
    route.prefersServers(LINE, () => false, 0),
    true,
  )
  breakDown(local, 0)
  assert.equal(
    route.prefersServers(LINE, () => false, 10),
    true,
    'the batch API is not in use yet',
  )
  local.begin(callAt(1_000))
  assert.equal(
    route.prefersServers(LINE, () => true, 1_100),
    false,
    'one line probes, no other is kept for it',
  )
  const back = new Route([batchApi(0), server('s', 1)], SPILL)
  assert.equal(
    back.prefersServers(LINE, () => true, 0),
    false,
  )
})

test('what a batch API left goes to others wherever they are, if any spill-over is allowed', () => {
  const [api, hosted] = [batchApi(0), server('hosted', 1)]
  const left = { ...LINE, avoid: api }
  assert.equal(
    new Route([api, hosted], SPILL).prefersServers(left, () => false, 0),
    true,
  )
  assert.equal(
    new Route([api, hosted], NEVER).prefersServers(left, () => false, 0),
    false,
  )
})

test('lines that a batch API would answer too late go to servers that take them now', () => {
  const [api, hosted] = [batchApi(0), server('hosted', 1)]
  const late = { ...LINE, isLate: true }
  assert.equal(
    new Route([api, hosted], SPILL).prefersServers(late, () => false, 0),
    true,
  )
  breakDown(hosted, 0)
  assert.equal(
    new Route([api, hosted], SPILL).prefersServers(late, () => false, 10),
    false,
  )
})
