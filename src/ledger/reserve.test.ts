import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { spendOf } from '../../test/support/test-books.ts'
import { accountOfLimit } from '../domain/limit.ts'
import type { LimitRow } from '../store/schema.ts'
import type { LimitUsage } from './counters.ts'
import { allocateLines as allocate, type Candidate } from './reserve.ts'

const allocateLines = (lines: readonly Candidate[], usages: readonly LimitUsage[]) =>
  allocate(lines, usages, 'key_1')

function limit(part: Partial<LimitRow>): LimitRow {
  return {
    id: 'lim_1',
    project_id: 'proj_1',
    scope: 'project',
    subject: '',
    model: '',
    metric: 'tokens',
    amount: 100,
    window: 'day',
    action: 'block',
    description: null,
    notify_at: '[]',
    created: 0,
    ...part,
  }
}

function meter(spender: string, spent: number, held: number, part: Partial<LimitRow> = {}): LimitUsage {
  const row = limit(part)
  const account = accountOfLimit(row, spender)
  return { limit: row, spender, account, spent, unspent: held, window: { start: 0, end: 1 } }
}

function line(position: number, tokens: number, entity: string | null = null, sent = false): Candidate {
  return { position, entity, model: 'm', projected: spendOf(tokens), isSent: sent }
}

describe('fitting lines under caps', () => {
  it('takes lines in order as long as they fit, to the last token', () => {
    const fit = allocateLines([line(0, 40), line(1, 60), line(2, 1)], [meter('', 0, 0)])
    assert.deepEqual(fit.allowed, [0, 1])
    assert.deepEqual(fit.waiting, [2])
  })

  it('passes over a line that does not fit for a later one that does', () => {
    const fit = allocateLines([line(0, 50), line(1, 60), line(2, 50)], [meter('', 0, 0)])
    assert.deepEqual([fit.allowed, fit.waiting], [[0, 2], [1]])
  })

  it('refuses a line that would not fit if all that is held came back unspent', () => {
    const fit = allocateLines([line(0, 11), line(1, 10)], [meter('', 90, 0)])
    assert.deepEqual([...fit.refused.keys()], [0])
    assert.deepEqual(fit.allowed, [1])
  })

  it('has a line wait that only holds keep out', () => {
    const fit = allocateLines([line(0, 30)], [meter('', 50, 40)])
    assert.deepEqual([fit.allowed, fit.waiting, fit.refused.size], [[], [0], 0])
  })

  it('stops the lines of the spender that has met its cap, and no others', () => {
    const meters = [meter('user:a', 100, 0, { scope: 'entity', subject: 'user:a' }), meter('user:b', 0, 0)]
    const fit = allocateLines(
      [line(0, 5, 'user:a'), line(1, 5, 'user:b'), line(2, 5), line(3, 5, 'user:c')],
      meters,
    )
    assert.deepEqual([...fit.refused.keys()], [0])
    assert.deepEqual(fit.allowed, [1, 2, 3])
  })

  it('asks every limit that matches', () => {
    const meters = [
      meter('', 0, 0, { amount: 1000 }),
      meter('user:a', 0, 0, { scope: 'entity', subject: 'user:a', metric: 'cost_usd', amount: 90 }),
    ]
    const fit = allocateLines([line(0, 5, 'user:a'), line(1, 5, 'user:a'), line(2, 500, 'user:b')], meters)
    assert.deepEqual(fit.allowed, [0, 2])
    assert.deepEqual(fit.waiting, [1])
  })

  it('counts a line that was sent whether it fits or not', () => {
    const fit = allocateLines([line(0, 10), line(1, 95, null, true)], [meter('', 0, 0)])
    assert.deepEqual(fit.allowed, [1])
    assert.deepEqual(fit.waiting, [0])
  })

  it('lets a line through that costs nothing, cap or no cap', () => {
    const fit = allocateLines([line(0, 0)], [meter('', 500, 0), meter('', 0, 0, { amount: 0 })])
    assert.deepEqual(fit.allowed, [0])
  })

  it('counts a line to the cap on its key, and to those on its model, of nobody else’s', () => {
    const caps = [
      meter('', 0, 0, { scope: 'key', subject: 'key_1', metric: 'requests', amount: 2 }),
      meter('', 0, 0, { scope: 'key', subject: 'key_2', amount: 0 }),
      meter('', 0, 0, { scope: 'model', model: 'm', amount: 25 }),
      meter('user:a', 0, 0, { scope: 'entity', subject: 'user:a', model: 'm', amount: 10 }),
      meter('user:a', 0, 0, { scope: 'entity', subject: 'user:a', model: 'other', amount: 0 }),
    ]
    const fit = allocateLines(
      [line(0, 10, 'user:a'), line(1, 10, 'user:a'), line(2, 20), line(3, 10), line(4, 1)],
      caps,
    )
    assert.deepEqual(
      [fit.allowed, fit.waiting],
      [
        [0, 3],
        [1, 2, 4],
      ],
    )
    const other = allocateLines([{ ...line(0, 9_000), model: 'other' }], caps.slice(0, 3))
    assert.deepEqual(other.waiting, [0], 'the requests of the key are used up')
  })
})
