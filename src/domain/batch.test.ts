import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import {
  BATCH_STATUSES,
  BATCH_TRANSITIONS,
  type BatchStatus,
  cancelOutcome,
  canTransition,
  finalStatus,
  isTerminal,
  mayRetry,
  statusesBefore,
} from './batch.ts'
import { FILE_STATUSES, FILE_TRANSITIONS } from './file.ts'

const RUNNING: readonly BatchStatus[] = ['in_progress', 'cancelling']

describe('the states of a batch', () => {
  test('every status can be reached from validating', () => {
    assert.deepEqual([...reachable(BATCH_TRANSITIONS, 'validating')].sort(), [...BATCH_STATUSES].sort())
  })

  test('from every status a terminal one can be reached', () => {
    for (const status of BATCH_STATUSES) {
      assert.ok([...reachable(BATCH_TRANSITIONS, status)].some(isTerminal), status)
    }
  })

  test('no batch comes back to a status that it left', () => {
    for (const status of BATCH_STATUSES) {
      for (const next of BATCH_TRANSITIONS[status]) {
        assert.equal(
          reachable(BATCH_TRANSITIONS, next).has(status),
          false,
          `${status} → ${next} → … → ${status}`,
        )
      }
    }
  })

  test('completed, failed, expired and cancelled are terminal, and nothing else is', () => {
    assert.deepEqual(BATCH_STATUSES.filter(isTerminal), ['failed', 'completed', 'expired', 'cancelled'])
  })

  test('a batch can only be cancelled by way of cancelling, and fail only while validating', () => {
    assert.deepEqual(statusesBefore('cancelled'), ['cancelling'])
    assert.deepEqual(statusesBefore('failed'), ['validating'])
    assert.deepEqual(statusesBefore('completed'), ['in_progress'])
    assert.deepEqual(statusesBefore('validating'), [])
  })

  test('the statuses before one are exactly those that may move to it', () => {
    for (const to of BATCH_STATUSES) {
      for (const from of BATCH_STATUSES) {
        assert.equal(statusesBefore(to).includes(from), canTransition(from, to), `${from} → ${to}`)
      }
    }
  })
})

describe('a cancel', () => {
  test('stops a batch that has not ended', () => {
    for (const status of ['validating', 'queued', 'in_progress'] as const)
      assert.equal(cancelOutcome(status), 'move')
  })

  test('sent again, shows the same batch', () => {
    for (const status of ['cancelling', 'cancelled'] as const) assert.equal(cancelOutcome(status), 'same')
  })

  test('is refused once the batch ended otherwise', () => {
    for (const status of ['completed', 'failed', 'expired'] as const)
      assert.equal(cancelOutcome(status), 'refuse')
  })
})

describe('the last sealed chunk', () => {
  test('ends a running batch in a status that it may move to, whatever is unfinished', () => {
    for (const status of RUNNING) {
      for (const unfinished of [0, 1, 1000]) {
        const end = finalStatus(status, unfinished)
        assert.ok(canTransition(status, end), `${status} → ${end}`)
        assert.ok(isTerminal(end))
      }
    }
  })

  test('completes a batch only when no line ran out of time', () => {
    assert.equal(finalStatus('in_progress', 0), 'completed')
    assert.equal(finalStatus('in_progress', 1), 'expired')
    assert.equal(finalStatus('cancelling', 1), 'cancelled')
  })
})

test('a line may succeed unchanged where its error passes, or limits and models may have changed since', () => {
  const groups = ['upstream_timeout', 'usage_limit_exceeded', 'model_not_found', 'content_filter'].map(
    (code) => ({
      ...{ code, retryable: code === 'upstream_timeout' },
    }),
  )
  assert.deepEqual(groups.map(mayRetry), [true, true, true, false])
})

describe('the states of a file', () => {
  test('a pending file becomes processed or error, and stays so', () => {
    assert.deepEqual([...reachable(FILE_TRANSITIONS, 'pending')].sort(), [...FILE_STATUSES].sort())
    assert.deepEqual(
      FILE_STATUSES.filter((status) => FILE_TRANSITIONS[status].length === 0),
      ['processed', 'error'],
    )
  })
})

/** The statuses that some chain of moves reaches from `start`, itself included. */
function reachable<S extends string>(moves: Record<S, readonly S[]>, start: S): Set<S> {
  const seen = new Set([start])
  // A Set includes values that are added during iteration.
  for (const status of seen) for (const next of moves[status]) seen.add(next)
  return seen
}
