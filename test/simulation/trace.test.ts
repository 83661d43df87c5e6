import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  Behaviour,
  type Change,
  type TracedChunk,
  type TracedRemoteBatch,
  type TracedReservation,
} from './trace.ts'

const READY: TracedChunk = {
  ...{ of: 'b 0', state: 'ready', epoch: 0, seq: 0, reservation_seq: 0, session: null },
  ...{ counted: 0, cost_nanos: 0, lines: 2, numbers: null, remote_batches: 0, parked_reason: null },
}
const LEASED = { ...READY, state: 'leased', epoch: 1, session: 'w1' }
const COUNTED = { ...LEASED, seq: 1, counted: 1 }
const SEALED = { ...COUNTED, state: 'sealed', seq: 2, counted: 2, session: null }
const THERE = { ...LEASED, remote_batches: 1 }
const PARKED = { ...THERE, state: 'parked', seq: 1, session: null, parked_reason: 'remote_batch' }
const INTENDED: TracedRemoteBatch = {
  ...{ id: 'r', of: 'b 0', state: 'intended', model: 'm', remote_id: null, creations: 0, isFailing: 0 },
  reserved: '[[null,5,7,1]]',
}
const CREATING = { ...INTENDED, state: 'creating', creations: 1 }
const OPEN = { ...CREATING, state: 'open', remote_id: 'there' }
const ENDED = { ...OPEN, state: 'ended' }
const RECORDED = { ...ENDED, state: 'recorded', reserved: null }
const RESERVED: TracedReservation = { of: 'b 0', isKept: 0, entity: ' m', cost_nanos: 5, tokens: 7 }
const KEPT = { ...RESERVED, isKept: 1 }

const chunk = (was: TracedChunk | null, is: TracedChunk | null): Change => ({ kind: 'chunk', was, is })
const remote = (was: TracedRemoteBatch | null, is: TracedRemoteBatch | null): Change => ({
  kind: 'remote_batch',
  was,
  is,
})
const reservation = (was: TracedReservation | null, is: TracedReservation | null): Change => ({
  kind: 'reservation',
  was,
  is,
})
const w1 = { id: 'w1' }
const OPENED: Change = { kind: 'session', was: null, is: w1 }
const CLOSED: Change = { kind: 'session', was: w1, is: null }

const CLAIMED = [[OPENED, chunk(null, READY)], [chunk(READY, LEASED)]]
const HANDED_OVER = [
  ...CLAIMED,
  [remote(null, INTENDED), chunk(LEASED, THERE), reservation(null, KEPT)],
  [remote(INTENDED, CREATING)],
]

/** What is wrong with the last transaction; nothing may be wrong with those before it. */
function found(transactions: readonly (readonly Change[])[]): string[] {
  const behaviour = new Behaviour()
  for (const changes of transactions.slice(0, -1)) assert.deepEqual(behaviour.transaction(changes), [])
  return behaviour.transaction(transactions.at(-1)!)
}

test('claim, reserve, commit and seal are a behaviour of the models', () => {
  const reserving = [chunk(LEASED, { ...LEASED, reservation_seq: 1 }), reservation(null, RESERVED)]
  const committing = [
    chunk(LEASED, COUNTED),
    reservation(RESERVED, { ...RESERVED, cost_nanos: 2, tokens: 3 }),
  ]
  assert.deepEqual(
    found([...CLAIMED, reserving, committing, [chunk(COUNTED, SEALED), reservation(RESERVED, null)]]),
    [],
  )
})

test('a remote batch that is created, ends and is recorded is a behaviour of the models', () => {
  const ready = { ...PARKED, state: 'ready', parked_reason: null }
  const again = { ...ready, state: 'leased', epoch: 2, session: 'w1' }
  const recording = [
    remote(ENDED, RECORDED),
    chunk(again, { ...again, remote_batches: 0 }),
    reservation(KEPT, null),
  ]
  const ending = [remote(OPEN, ENDED), chunk(PARKED, ready)]
  assert.deepEqual(
    found([
      ...HANDED_OVER,
      [remote(CREATING, OPEN)],
      [chunk(THERE, PARKED)],
      ending,
      [chunk(ready, again)],
      recording,
    ]),
    [],
  )
})

const WRONG: readonly { what: string; steps: readonly (readonly Change[])[]; why: RegExp }[] = [
  {
    what: 'a claim that keeps the epoch',
    steps: [...CLAIMED.slice(0, 1), [chunk(READY, { ...LEASED, epoch: 0 })]],
    why: /no step of the model/,
  },
  {
    what: 'a claim for a session that has ended',
    steps: [[chunk(null, READY)], [chunk(READY, LEASED)]],
    why: /a session that has ended/,
  },
  {
    what: 'a session that ends and keeps its lease',
    steps: [...CLAIMED, [CLOSED]],
    why: /a session that has ended/,
  },
  {
    what: 'lines that count without a commit',
    steps: [...CLAIMED, [chunk(LEASED, { ...LEASED, counted: 1 })]],
    why: /without a commit/,
  },
  {
    what: 'a commit after the lease',
    steps: [[OPENED, chunk(null, READY)], [chunk(READY, { ...READY, seq: 1, counted: 1 })]],
    why: /no step of the model/,
  },
  {
    what: 'a commit that leaves its number',
    steps: [...CLAIMED, [chunk(LEASED, { ...SEALED, seq: 0 })]],
    why: /no step of the model/,
  },
  {
    what: 'lines that count twice',
    steps: [...CLAIMED, [chunk(LEASED, { ...COUNTED, counted: 3 })]],
    why: /3 of 2 lines/,
  },
  {
    what: 'a seal before the last line',
    steps: [...CLAIMED, [chunk(LEASED, { ...SEALED, seq: 1, counted: 1 })]],
    why: /is sealed, and 1 of 2/,
  },
  {
    what: 'a reservation that outlives its lease',
    steps: [...CLAIMED, [reservation(null, RESERVED)], [chunk(LEASED, { ...SEALED, seq: 1 })]],
    why: /something is reserved for it/,
  },
  {
    what: 'a reservation without a lease',
    steps: [[chunk(null, READY)], [reservation(null, RESERVED), reservation(RESERVED, null)]],
    why: /and it is ready/,
  },
  {
    what: 'less than nothing reserved',
    steps: [...CLAIMED, [reservation(null, { ...RESERVED, tokens: -1 })]],
    why: /less than nothing/,
  },
  {
    what: 'an intent without a lease',
    steps: [
      [chunk(null, READY)],
      [remote(null, INTENDED), chunk(READY, { ...READY, remote_batches: 1 }), reservation(null, KEPT)],
    ],
    why: /intended for a chunk that is ready/,
  },
  {
    what: 'a remote batch that nothing announced',
    steps: [...HANDED_OVER.slice(0, -1), [remote(INTENDED, OPEN)]],
    why: /no step of the model/,
  },
  {
    what: 'an announcement without a lease',
    steps: [...HANDED_OVER, [chunk(THERE, PARKED)], [remote(CREATING, { ...CREATING, creations: 2 })]],
    why: /its chunk is parked/,
  },
  {
    what: 'a remote batch that is recorded without a lease',
    steps: [
      ...HANDED_OVER,
      [chunk(THERE, PARKED)],
      [
        remote(CREATING, { ...RECORDED, creations: 1 }),
        chunk(PARKED, { ...PARKED, remote_batches: 0 }),
        reservation(KEPT, null),
      ],
    ],
    why: /record, and its chunk is parked/,
  },
  {
    what: 'a remote batch that is not counted',
    steps: [...CLAIMED, [remote(null, INTENDED), reservation(null, KEPT)]],
    why: /counts 0 remote batches/,
  },
  {
    what: 'what lines there may cost, which is not kept',
    steps: [...CLAIMED, [remote(null, INTENDED), chunk(LEASED, THERE)]],
    why: /keeps/,
  },
  {
    what: 'what lines there may cost, kept twice',
    steps: [...HANDED_OVER, [reservation(KEPT, { ...KEPT, cost_nanos: 10 })]],
    why: /keeps/,
  },
  {
    what: 'an end that leaves the chunk parked',
    steps: [...HANDED_OVER, [remote(CREATING, OPEN)], [chunk(THERE, PARKED)], [remote(OPEN, ENDED)]],
    why: /a batch of it has ended/,
  },
]

for (const { what, steps, why } of WRONG)
  test(`${what} is no behaviour of the models`, () => {
    assert.match(found(steps).join('\n'), why)
  })
