import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  bytesPerToken,
  charactersPerTokenMax,
  countedCharacters,
  learnedTokens,
  projectedTokens,
} from './tokens.ts'

const seen = (bytes: number, tokens: number) => ({ bytes, tokens, long_bytes: bytes, long_tokens: tokens })

test('a token has four bytes until enough was seen, and few tokens only make projections higher', () => {
  assert.equal(bytesPerToken(undefined), 4)
  assert.equal(bytesPerToken(seen(999, 999)), 4)
  assert.equal(bytesPerToken(seen(22_000, 10_000)), 2)
  assert.equal(bytesPerToken(seen(66_000, 10_000)), 4)
  assert.equal(bytesPerToken(seen(660_000, 100_000)), 6)
  assert.equal(projectedTokens(100, seen(220_000, 100_000)), 200)
  assert.equal(projectedTokens(100, undefined), 100)
})

test('what a server reports beyond reason changes projections within bounds', () => {
  assert.equal(bytesPerToken(seen(1e12, 1_000_000)), 16)
  assert.equal(bytesPerToken(seen(1, 1e12)), 0.25)
  assert.equal(charactersPerTokenMax(seen(1e12, 1_000_000)), 16)
  assert.equal(charactersPerTokenMax(seen(1, 1e12)), 8)
})

test('a run of one character counts as little as the longest token, an astral character as one', () => {
  assert.equal(countedCharacters(`a${' '.repeat(1000)}b`), 18)
  assert.equal(countedCharacters('😀😁'), 2)
  assert.equal(countedCharacters('ab'.repeat(50)), 100)
  // As long as a line may be: a regular expression runs out of stack.
  assert.equal(countedCharacters('x'.repeat(8 * 2 ** 20)), 16)
})

test('of a report, no more is learned than a tokenizer can make of the prompt, and nothing where it is far less', () => {
  for (const [bytes, reported, learned] of [
    [50, 30, 30],
    [50, 4_000, 306],
    [100_000, 100_000, 100_000],
    [100_000, 2_000, 2_000],
    [100_000, 1_000, null],
    [100_000, 0, null],
  ] as const)
    assert.equal(learnedTokens(bytes, reported), learned, `${reported} tokens of ${bytes} bytes`)
})
