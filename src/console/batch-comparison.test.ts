import assert from 'node:assert/strict'
import { test } from 'node:test'
import { excerptsOf, pairsOf, sideOf, wordDifferences } from './batch-comparison.ts'

const result = (line: number, custom_id: string, more: object): string =>
  JSON.stringify({ id: `req_${'0'.repeat(26)}000000${line}`, custom_id, error: null, ...more })

const answered = (line: number, custom_id: string, content: string, message: object = {}): string =>
  result(line, custom_id, {
    response: {
      body: {
        ...{ id: `chat-${line}`, created: line },
        choices: [{ index: 0, message: { role: 'assistant', content, ...message } }],
        usage: { total_tokens: 7, cost_usd: 0.25 },
      },
    },
  })

const sides = (...texts: string[]): Map<string, ReturnType<typeof sideOf>['side']> =>
  new Map(texts.map(sideOf).map(({ custom_id, side }) => [custom_id, side]))

test('a side has what a list shows of a line', () => {
  const { custom_id, side } = sideOf(answered(3, 'x', 'yes', { tool_calls: null }))
  assert.deepEqual(
    [custom_id, side.line, side.failed, side.answer, side.cost_usd, side.tokens],
    ['x', 3, false, 'yes', 0.25, 7],
  )
  const failed = sideOf(result(4, 'y', { error: { code: 'bad', message: 'no' }, response: null }))
  assert.deepEqual([failed.side.failed, failed.side.answer, failed.side.cost_usd], [true, 'bad: no', 0])
})

test('lines are paired by custom_id in any order, and those that differ come first', () => {
  const a = sides(
    answered(1, 'same', 'one'),
    answered(2, 'other', 'two'),
    answered(3, 'failed', 'three'),
    answered(4, 'only', 'four'),
    answered(5, 'tools', '', { tool_calls: [{ function: { name: 'f' } }] }),
  )
  const b = sides(
    answered(1, 'tools', '', { tool_calls: [{ function: { name: 'g' } }] }),
    answered(2, 'same', 'one'),
    result(3, 'failed', { error: { code: 'bad', message: 'no' }, response: null }),
    answered(4, 'other', `two${'.'.repeat(500)}`),
  )
  assert.deepEqual(
    pairsOf(a, b).map(({ custom_id, difference }) => [custom_id, difference]),
    [
      ['failed', 'status'],
      ['other', 'answer'],
      ['tools', 'answer'],
      ['only', 'missing'],
      ['same', 'same'],
    ],
  )
})

test('answers that differ behind their excerpts differ', () => {
  const long = 'x'.repeat(1_000)
  const [pair] = pairsOf(sides(answered(1, 'a', `${long}1`)), sides(answered(1, 'a', `${long}2`)))
  assert.equal(pair?.difference, 'answer')
})

test('excerpts of long answers begin a little before they differ', () => {
  const long = 'word '.repeat(200)
  const [pair] = pairsOf(
    new Map([['a', sideOf(answered(1, 'a', `${long}yes, they do`), 5_000).side]]),
    new Map([['a', sideOf(answered(1, 'a', `${long}no, they do not`), 5_000).side]]),
  )
  assert.ok(pair)
  const lead = `…${'word '.repeat(6)}`
  assert.deepEqual(excerptsOf(pair), [`${lead}yes, they do`, `${lead}no, they do not`])
  assert.deepEqual(excerptsOf({ ...pair, b: null })[0]?.slice(0, 9), 'word word')
})

test('the words that only one of two answers has are told apart from those of both', () => {
  const shown = (one: string, other: string): string[] =>
    wordDifferences(one, other).map((parts) =>
      parts.map(({ text, isOwn }) => (isOwn ? `[${text}]` : text)).join(''),
    )
  assert.deepEqual(shown('The cat sat.', 'The dog sat there.'), ['The [cat] sat.', 'The [dog] sat[ there].'])
  assert.deepEqual(shown('one two three', 'one six ten three'), ['one [two] three', 'one [six ten] three'])
  assert.deepEqual(shown('同じ答え', '同じ返事'), ['同じ[答え]', '同じ[返事]'])
  assert.deepEqual(shown('', 'new'), ['', '[new]'])
  const [long, longer] = [0, 1].map((seed) => Array.from({ length: 5_000 }, (_, i) => i * 2 + seed).join(' '))
  assert.equal(wordDifferences(`same ${long}`, `same ${longer}`)[0][0]?.text, 'same ')
})
