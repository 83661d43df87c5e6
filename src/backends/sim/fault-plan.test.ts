import assert from 'node:assert/strict'
import { hash } from 'node:crypto'
import test from 'node:test'
import { simSettings } from '../../domain/simulated-server.ts'
import { FaultPlan } from './simulator.ts'

const faults = { 429: 0.1, 500: 0.05, hang: 0.05 }
const requests = Array.from({ length: 5000 }, (_, i) => hash('sha256', `request ${i}`))

function plan(seed = 0): FaultPlan {
  return new FaultPlan(simSettings({ faults, seed }))
}

test('faults are dealt at their rates', () => {
  const met = new Map<string | null, number>()
  const dealt = plan()
  for (const request of requests) {
    const fault = dealt.next(request)
    met.set(fault, (met.get(fault) ?? 0) + 1)
  }
  for (const [fault, rate] of Object.entries(faults)) {
    const share = (met.get(fault) ?? 0) / requests.length
    assert.ok(Math.abs(share - rate) < 0.02, `${fault}: ${share}`)
  }
})

test('the order of the requests changes nothing, the seed does', () => {
  const forwards = plan()
  const backwards = plan()
  const first = new Map(requests.map((request) => [request, forwards.next(request)]))
  for (const request of requests.toReversed()) assert.equal(backwards.next(request), first.get(request))
  const other = plan(1)
  assert.ok(requests.some((request) => other.next(request) !== first.get(request)))
})

test('a request that met a fault can succeed when it is sent again', () => {
  const dealt = plan()
  let attempts_max = 0
  for (const request of requests) {
    let attempts = 1
    while (attempts < 100 && dealt.next(request) !== null) attempts += 1
    attempts_max = Math.max(attempts_max, attempts)
  }
  assert.ok(attempts_max > 1 && attempts_max < 12, `${attempts_max} attempts`)
})

test('a fault that is certain is met every time', () => {
  const dealt = new FaultPlan(simSettings({ faults: { reset: 1 } }))
  for (let i = 0; i < 20; i++) assert.equal(dealt.next(requests[0] ?? ''), 'reset')
})
