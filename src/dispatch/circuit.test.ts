import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Circuit } from './circuit.ts'

function broken(now: number): Circuit {
  const circuit = new Circuit()
  for (let i = 0; i < 8; i++) circuit.onFailed(now)
  return circuit
}

test('a few failures in a row leave the circuit closed, and an answer forgives them', () => {
  const circuit = new Circuit()
  for (let i = 0; i < 7; i++) circuit.onFailed(0)
  assert.ok(circuit.allows(0))
  circuit.onAnswered()
  for (let i = 0; i < 7; i++) circuit.onFailed(0)
  assert.ok(circuit.allows(0))
})

test('once open, nothing is sent until one line may probe', () => {
  const circuit = broken(1_000)
  assert.ok(!circuit.allows(1_000))
  assert.equal(circuit.openedAt, 1_000)
  assert.equal(circuit.retryAt, 1_500)
  assert.ok(circuit.allows(1_500))
  circuit.onSent()
  assert.ok(!circuit.allows(1_500), 'a second line does not probe')
})

test('a probe that is answered closes the circuit', () => {
  const circuit = broken(0)
  circuit.onSent()
  circuit.onAnswered()
  assert.ok(circuit.allows(0))
  assert.equal(circuit.openedAt, null)
})

test('probes that fail come ever more rarely, but never rarer than every half minute', () => {
  const circuit = broken(0)
  let now = 0
  const pauses: number[] = []
  for (let i = 0; i < 9; i++) {
    now = circuit.retryAt!
    circuit.onSent()
    circuit.onFailed(now)
    pauses.push(circuit.retryAt! - now)
  }
  assert.deepEqual(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000, 30_000])
})

test('a probe that was withdrawn lets another one go', () => {
  const circuit = broken(0)
  circuit.onSent()
  circuit.onAborted()
  assert.ok(circuit.allows(500))
})
