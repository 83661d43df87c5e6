import assert from 'node:assert/strict'
import { test } from 'node:test'
import { heldBackBy, serverState, serversOf } from './server-state.ts'

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

test('a server that asks to wait is not ill, and what keeps it from more is said', () => {
  const idle = { circuit: 'closed', hours: null, latency_ms: 20, errors_per_s: 0.5, reachable: true } as const
  assert.equal(serverState({ ...idle, last_error: '429: slow down' }, false), 'throttled')
  assert.equal(serverState({ ...idle, last_error: '500: crash' }, false), 'recovering')
  const server = {
    ...{ model: 'm', upstream: 'a', ...idle, errors_per_s: 0, lines_per_s: 1, last_error: null },
    ...{ in_flight: 4, concurrency: 8, concurrency_max: 8, state: 'healthy' as const },
  }
  assert.equal(heldBackBy(server, [server]), null)
  assert.equal(heldBackBy({ ...server, in_flight: 8 }, [server]), 'configured')
  const full = { ...server, concurrency: 4 }
  assert.equal(heldBackBy(full, [full]), 'found')
  assert.equal(heldBackBy({ ...full, latency_ms: 50 }, [full]), 'slow')
  assert.equal(heldBackBy({ ...full, state: 'down' }, [full]), 'down')
})

test('a server is as all workers together see it, each with its part of concurrency_max', () => {
  const one = {
    ...{
      model: 'm',
      upstream: 'a',
      circuit: 'closed' as const,
      latency_ms: 20,
      errors_per_s: 0,
      last_error: null,
    },
    ...{ reachable: true, lines_per_s: 1, in_flight: 4, concurrency: 4, concurrency_max: 4 },
  }
  const service = { workers: [{ upstreams: [one] }, { upstreams: [{ ...one, in_flight: 1 }] }], models: [] }
  const [server, ...others] = serversOf(service)
  assert.ok(server)
  assert.deepEqual([others, server.in_flight, server.concurrency, server.concurrency_max], [[], 5, 8, 8])
  assert.equal(heldBackBy(server, [server]), null)
})
