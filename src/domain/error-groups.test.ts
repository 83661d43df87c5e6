import assert from 'node:assert/strict'
import { test } from 'node:test'
import { addErrorGroups, groupErrors } from './batch-statistics.ts'

const error = (message: string, code = 'upstream_rejected') => ({ code, message })

test('messages that differ in numbers and IDs are one group', () => {
  const groups = groupErrors([
    error('The prompt has 5012 tokens; 4096 fit (req_01k0a6).'),
    error('The prompt has 9 tokens; 4096 fit (req_01k0a7).'),
    error('No such tool.'),
    error('No such tool.', 'invalid_request'),
  ])
  assert.deepEqual(
    groups.map(({ code, pattern, lines }) => [code, pattern, lines]),
    [
      ['upstream_rejected', 'The prompt has 0 tokens; 0 fit (0).', 2],
      ['upstream_rejected', 'No such tool.', 1],
      ['invalid_request', 'No such tool.', 1],
    ],
  )
  assert.equal(groups[0]?.message, 'The prompt has 5012 tokens; 4096 fit (req_01k0a6).')
})

test('however many messages there are, the groups are few and lose no line', () => {
  const word = (i: number): string => [...String(i)].map((digit) => 'abcdefghij'[Number(digit)]).join('')
  let groups = groupErrors([])
  for (let i = 0; i < 500; i++) {
    const more = groupErrors([error(`no ${word(i)}`), error('always'), error(`no ${word(i)}`, 'other')])
    groups = addErrorGroups(groups, more)
  }
  assert.ok(groups.length <= 42, `${groups.length} groups`)
  assert.equal(
    groups.reduce((sum, { lines }) => sum + lines, 0),
    1500,
  )
  assert.equal(groups.find(({ pattern }) => pattern === 'always')?.lines, 500)
})

test('lines that are taken back leave their groups, and empty groups go', () => {
  const groups = groupErrors([error('a'), error('a'), error('b')])
  const left = addErrorGroups(
    groups,
    groupErrors([error('a'), error('b')]).map((group) => ({ ...group, lines: -group.lines })),
  )
  assert.deepEqual(
    left.map(({ pattern, lines }) => [pattern, lines]),
    [['a', 1]],
  )
})
