import assert from 'node:assert/strict'
import { test } from 'node:test'
import { serverState } from './server-state.ts'

test('a server is healthy only while it answers', () => {
  const idle = { circuit: 'closed', hours: null, latency_ms: null, errors_per_s: 0 } as const
  assert.equal(serverState(idle, false), 'unknown')
  assert.equal(serverState({ ...idle, latency_ms: 20 }, false), 'healthy')
  assert.equal(serverState({ ...idle, latency_ms: 20, errors_per_s: 0.1 }, false), 'recovering')
  assert.equal(serverState({ ...idle, reachable: true }, false), 'healthy')
  assert.equal(serverState({ ...idle, reachable: false }, false), 'down')
  assert.equal(serverState({ ...idle, circuit: 'open', reachable: true }, false), 'recovering')
  assert.equal(serverState({ ...idle, circuit: 'open', errors_per_s: 0.1 }, false), 'down')
  assert.equal(serverState({ ...idle, hours: { places: 0, until: null } }, false), 'outsideHours')
  assert.equal(serverState({ ...idle, circuit: 'open' }, true), 'starting')
})
