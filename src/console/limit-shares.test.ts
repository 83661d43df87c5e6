import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { LimitObject } from '../wire/limit.ts'
import { isReached, toneOf } from './limit-shares.ts'

test('a cap that rejects lines is red, a near one amber, and one that only notifies never red', () => {
  const limit: LimitObject = {
    ...{ id: 'lim_1', object: 'limit', scope: 'entity', entity: 'team:a', metric: 'cost_usd', amount: 10 },
    ...{ window: 'month', action: 'block', notify_at: [], created: 0 },
  }
  const cap = (value: number, action: LimitObject['action'] = 'block') => {
    return { name: 'team:a', value, limit: { ...limit, action } }
  }
  assert.deepEqual([toneOf(cap(7)), toneOf(cap(8)), toneOf(cap(10))], ['info', 'warn', 'bad'])
  assert.deepEqual([toneOf(cap(20, 'notify')), isReached(cap(20, 'notify'))], ['warn', false])
})
