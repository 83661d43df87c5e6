import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { Circuit, type Miss, type Ticket } from './circuit.ts'

/** Sends a line that never missed, unless `line` says otherwise. */
function send(circuit: Circuit, batch_id: string, now: number, line?: object): Ticket {
  return sent(circuit, { batch_id, missedBefore: line !== undefined, line: line ?? {} }, now)
}

function sent(
  circuit: Circuit,
  of: Pick<Ticket, 'batch_id' | 'missedBefore' | 'line'>,
  sentAt: number,
): Ticket {
  const ticket: Ticket = { ...of, sentAt, probing: null }
  circuit.onSent(ticket)
  return ticket
}

function miss(
  circuit: Circuit,
  batch_id: string,
  now: number,
  kind: Miss = 'failed',
  line?: object,
): boolean {
  return circuit.onMissed(send(circuit, batch_id, now, line), kind, { reason: `${kind}: no` }, now)
}

function answer(circuit: Circuit, batch_id: string, now: number): void {
  circuit.onAnswered(send(circuit, batch_id, now), now)
}

function broken(now: number, kind: Miss = 'failed'): Circuit {
  const circuit = new Circuit()
  for (let i = 0; i < 8; i++) miss(circuit, 'a', now, kind)
  return circuit
}

test('one attempt that does not reach the server opens the circuit; of a gateway, misses for a second', () => {
  const unreachable = new Circuit()
  miss(unreachable, 'a', 0, 'unreachable')
  assert.deepEqual([unreachable.open, unreachable.retryAt], [true, 500])
  const unavailable = new Circuit()
  miss(unavailable, 'a', 0, 'unavailable')
  miss(unavailable, 'a', 999, 'unavailable')
  assert.ok(unavailable.closed)
  miss(unavailable, 'a', 1_000, 'unavailable')
  assert.ok(unavailable.open)
  const failing = new Circuit()
  miss(failing, 'a', 0)
  miss(failing, 'b', 60_000)
  assert.ok(failing.closed)
})

test('a few failures in a row leave the circuit closed, and an answer resets their count', () => {
  const circuit = new Circuit()
  for (let i = 0; i < 7; i++) miss(circuit, 'a', 0)
  assert.ok(circuit.closed)
  answer(circuit, 'a', 0)
  for (let i = 0; i < 7; i++) miss(circuit, 'a', 0)
  assert.ok(circuit.closed)
})

test('repeated failures of one line never open it', () => {
  const circuit = new Circuit()
  const line = {}
  for (let i = 0; i < 100; i++) miss(circuit, 'a', i, 'failed', line)
  assert.ok(circuit.closed)
})

test('while it is open, no line of the batch is sent before the probe', () => {
  const circuit = broken(1_000)
  assert.deepEqual([circuit.probeDue(1_000), circuit.mayProbeEarly('a')], [false, false])
  assert.ok(circuit.blocks(1_000, 'a'))
  assert.equal(circuit.retryAt, 1_500)
  assert.ok(circuit.probeDue(1_500))
  send(circuit, 'a', 1_500)
  assert.ok(!circuit.probeDue(1_500), 'a second line does not probe')
})

test('a circuit that opened by a clock that was ahead is probed once the clock is set right', () => {
  const circuit = broken(40 * 24 * 3_600_000)
  assert.ok(circuit.probeDue(1_000))
  assert.ok(!circuit.blocks(1_000, 'a'))
})

test('a batch that did not cause the opening may send a line at once, unless the server is unreachable', () => {
  const circuit = broken(0)
  assert.deepEqual(
    [circuit.blocks(0, 'b'), circuit.blocks(0), circuit.mayProbeEarly('b')],
    [false, false, true],
  )
  const ticket = send(circuit, 'b', 0)
  assert.ok(!circuit.mayProbeEarly('b'), 'one line, not two')
  assert.ok(circuit.mayProbeEarly('c'))
  circuit.onMissed(ticket, 'failed', { reason: 'no' }, 0)
  assert.ok(circuit.blocks(0, 'b'), 'it fails there as well')

  const gone = broken(0, 'unreachable')
  assert.deepEqual([gone.blocks(0, 'b'), gone.blocks(0), gone.mayProbeEarly('b')], [true, true, false])
})

test('an answered probe closes the circuit', () => {
  const circuit = broken(0)
  answer(circuit, 'a', 500)
  assert.deepEqual([circuit.closed, circuit.missStreak], [true, null])
})

for (const [kind, most] of [
  ['unreachable', 30_000],
  ['failed', 10_000],
] as const) {
  test(`the pause between missed probes (${kind}) doubles up to ${most} ms`, () => {
    const circuit = broken(0, kind)
    let now = 0
    const pauses: number[] = []
    for (let i = 0; i < 9; i++) {
      now = circuit.retryAt!
      miss(circuit, 'a', now, kind)
      pauses.push(circuit.retryAt! - now)
    }
    const grow = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000, 30_000]
    assert.deepEqual(
      pauses,
      grow.map((ms) => Math.min(ms, most)),
    )
  })
}

test('after an aborted probe another line may probe', () => {
  const circuit = broken(0)
  circuit.endProbe(send(circuit, 'a', 500))
  assert.ok(circuit.probeDue(500))
})

test('a server that asks for a pause gets only one line of each other batch meanwhile', () => {
  const circuit = new Circuit()
  circuit.onMissed(send(circuit, 'a', 0), 'throttled', { reason: '429' }, 0, 60_000)
  assert.deepEqual([circuit.open, circuit.blocks(59_999, 'a'), circuit.probeDue(60_000)], [false, true, true])
  answer(circuit, 'b', 10)
  assert.ok(circuit.closed)
})

test('a batch that is at fault cannot open it any more', () => {
  const circuit = broken(0)
  for (let i = 0; i < 8; i++) answer(circuit, 'b', 10)
  assert.ok(circuit.faults.isAtFault('a'))
  for (let i = 0; i < 100; i++) assert.equal(miss(circuit, 'a', 20), false)
  assert.ok(circuit.closed)
  for (let i = 0; i < 8; i++) miss(circuit, 'a', 30, 'unreachable')
  assert.ok(!circuit.closed, 'a server that is gone is gone for everybody')
})

test('a server is up while nothing but one line missed since a recent answer', () => {
  const circuit = new Circuit()
  const line = {}
  assert.ok(!circuit.isUp(0, line), 'nothing is known')
  answer(circuit, 'b', 0)
  miss(circuit, 'a', 1, 'failed', line)
  assert.ok(circuit.isUp(2, line))
  circuit.onMissed(
    sent(circuit, { batch_id: 'a', missedBefore: false, line }, 2),
    'failed',
    { reason: 'no' },
    2,
  )
  assert.deepEqual([circuit.isUp(3, line), circuit.isUp(3, {})], [true, false])
  miss(circuit, 'a', 3)
  assert.ok(!circuit.isUp(4, line), 'another line met the same')
  answer(circuit, 'b', 5)
  assert.deepEqual([circuit.isUp(6, line), circuit.isUp(70_000, line)], [true, false])
})

/** Some batches have only lines that fail, the others none; the server is unavailable from time to time. */
interface Step {
  batch: number
  retry: boolean
  gapMs: number
}

const step: fc.Arbitrary<Step> = fc.record({
  batch: fc.nat(5),
  retry: fc.boolean(),
  gapMs: fc.nat(300),
})

function isPoison(batch: number): boolean {
  return batch >= 3
}

/** Sends a line if the circuit lets it through; returns whether it was sent. */
function play(circuit: Circuit, { batch, retry }: Step, now: number, isGone: boolean, kind: Miss): boolean {
  const batch_id = String(batch)
  const may = circuit.closed || circuit.probeDue(now) || (!retry && circuit.mayProbeEarly(batch_id))
  if (!may) return false
  const ticket = sent(circuit, { batch_id, missedBefore: retry, line: {} }, now)
  if (isGone) circuit.onMissed(ticket, 'unreachable', { reason: 'gone' }, now)
  else if (isPoison(batch))
    circuit.onMissed(ticket, kind, { reason: 'no' }, now, kind === 'throttled' ? 3_600_000 : null)
  else circuit.onAnswered(ticket, now)
  return true
}

test('failing batches never delay a line of another batch that never missed', () => {
  fc.assert(
    fc.property(
      fc.array(step, { maxLength: 300 }),
      fc.constantFrom<Miss>('failed', 'throttled'),
      (steps, kind) => {
        const circuit = new Circuit()
        let now = 0
        for (const one of steps) {
          now += one.gapMs
          const isSent = play(circuit, one, now, false, kind)
          if (!isPoison(one.batch) && !one.retry) assert.ok(isSent)
        }
      },
    ),
  )
})

test('an unreachable server gets one line per pause, and its return is noticed', () => {
  fc.assert(
    fc.property(fc.array(step, { minLength: 20, maxLength: 300 }), (steps) => {
      const circuit = broken(0, 'unreachable')
      let now = 0
      let sent = 0
      for (const one of steps) {
        now += one.gapMs
        if (play(circuit, one, now, true, 'failed')) sent++
      }
      assert.ok(sent <= 1 + Math.log2(1 + now / 500) + now / 30_000, `${sent} lines in ${now} ms`)
      const back = circuit.retryAt!
      assert.ok(back <= now + 30_000)
      assert.ok(play(circuit, { batch: 0, retry: true, gapMs: 0 }, back, false, 'failed'))
      assert.ok(circuit.closed)
    }),
  )
})
