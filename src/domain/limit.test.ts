import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import {
  accountOfLimit,
  accountsOf,
  LIMIT_SCOPES,
  spenderOf,
  thresholdsMet,
  WHOLE_PROJECT,
  windowAt,
} from './limit.ts'

const at = (text: string): number => Date.parse(text)

describe('the window of a limit', () => {
  it('is the UTC day or month, the first moment of the next no longer included', () => {
    assert.deepEqual(windowAt('day', at('2026-02-28T23:59:59.999Z')), {
      start: at('2026-02-28T00:00:00Z'),
      end: at('2026-03-01T00:00:00Z'),
    })
    assert.deepEqual(windowAt('month', at('2026-12-31T23:59:59.999Z')), {
      start: at('2026-12-01T00:00:00Z'),
      end: at('2027-01-01T00:00:00Z'),
    })
    assert.equal(windowAt('month', at('2027-01-01T00:00:00Z')).start, at('2027-01-01T00:00:00Z'))
    assert.equal(windowAt('day', at('2028-02-29T12:00:00Z')).end, at('2028-03-01T00:00:00Z'))
  })
})

describe('the window of a week', () => {
  it('begins on Monday, whatever month and year that is in', () => {
    const week = { start: at('2026-12-28T00:00:00Z'), end: at('2027-01-04T00:00:00Z') }
    for (const day of ['2026-12-28T00:00:00Z', '2026-12-31T12:00:00Z', '2027-01-03T23:59:59.999Z'])
      assert.deepEqual(windowAt('week', at(day)), week, day)
    assert.equal(windowAt('week', week.end).start, week.end)
  })
})

describe('whose spending a limit counts', () => {
  const of = (entity: string | null, model = 'm', key_id = 'key_1') => ({ entity, model, key_id })

  it('is the project’s, whoever the work is for', () => {
    const limit = { scope: 'project', subject: '', model: '' } as const
    assert.equal(spenderOf(limit, of(null)), WHOLE_PROJECT)
    assert.equal(spenderOf(limit, of('user:1')), WHOLE_PROJECT)
  })

  it('is that of one entity, by its very name', () => {
    const limit = { scope: 'entity', subject: 'user:1', model: '' } as const
    assert.equal(spenderOf(limit, of('user:1')), 'user:1')
    for (const other of ['user:2', 'user/1', 'User:1', null]) assert.equal(spenderOf(limit, of(other)), null)
  })

  it('is that of each entity of a type on its own, however the type is set off', () => {
    const limit = { scope: 'entity_type', subject: 'user', model: '' } as const
    for (const entity of ['user:1', 'user/1', 'user_1']) assert.equal(spenderOf(limit, of(entity)), entity)
    for (const other of ['team:1', 'user', 'user:', null]) assert.equal(spenderOf(limit, of(other)), null)
  })

  it('is that of one key, whoever the work is for', () => {
    const limit = { scope: 'key', subject: 'key_1', model: '' } as const
    assert.equal(spenderOf(limit, of('user:1')), WHOLE_PROJECT)
    assert.equal(spenderOf(limit, of('user:1', 'm', 'key_2')), null)
  })

  it('is that with one model, alone or of the same spender', () => {
    const model = { scope: 'model', subject: '', model: 'm' } as const
    const both = { scope: 'entity_type', subject: 'user', model: 'm' } as const
    assert.deepEqual([spenderOf(model, of(null)), spenderOf(both, of('user:1'))], [WHOLE_PROJECT, 'user:1'])
    for (const limit of [model, both]) assert.equal(spenderOf(limit, of('user:1', 'other')), null)
  })

  it('is in one of the accounts to which the line counts, and no line counts to the account of another', () => {
    const payers = [of(null), of('user:1'), of('user:1', 'n'), of('user:2', 'm', 'key_2')]
    const limits = LIMIT_SCOPES.flatMap((scope) =>
      ['', 'm', 'n'].flatMap((model) =>
        ['', 'user', 'user:1', 'key_1'].map((subject) => ({ scope, subject, model })),
      ),
    ).filter(({ scope, model }) => scope !== 'model' || model !== '')
    for (const limit of limits)
      for (const payer of payers) {
        const spender = spenderOf(limit, payer)
        if (spender === null) continue
        const account = accountOfLimit(limit, spender)
        for (const other of payers)
          assert.equal(
            accountsOf(other).includes(account),
            spenderOf(limit, other) === spender,
            `${account} of ${JSON.stringify(limit)} and ${JSON.stringify(other)}`,
          )
      }
  })
})

describe('the thresholds met', () => {
  const limit = { amount: 1_000_000_003, notify_at: [0.1, 0.7, 0.8] }

  it('are those that spending has come to, and the cap', () => {
    assert.deepEqual(thresholdsMet(limit, 0), [])
    assert.deepEqual(thresholdsMet(limit, 700_000_001), [0.1])
    assert.deepEqual(thresholdsMet(limit, 700_000_002), [0.1, 0.7])
    assert.deepEqual(thresholdsMet(limit, 1_000_000_002), [0.1, 0.7, 0.8])
    assert.deepEqual(thresholdsMet(limit, 1_000_000_003), [0.1, 0.7, 0.8, 1])
  })

  it('name the cap once, also when it is asked for by name', () => {
    assert.deepEqual(thresholdsMet({ amount: 10, notify_at: [0.5, 1] }, 12), [0.5, 1])
  })
})
