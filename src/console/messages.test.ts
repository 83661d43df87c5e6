import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ERRORS } from '../domain/errors.ts'
import { WAITING_CODES } from '../domain/progress.ts'
import { fill, WAITING_TEXTS, waitingText } from '../domain/waiting-text.ts'
import { languageOf } from './i18n.ts'
import { advice, waiting } from './messages/de.ts'
import { messages } from './messages/texts.ts'

const placeholders = (text: string): string[] =>
  [...text.matchAll(/\{(\w+)/g)].map(([, name = '']) => name).sort()

test('every text is there in every language, with the same values in it', () => {
  for (const [key, [text, translated]] of Object.entries(messages)) {
    assert.notEqual(translated.trim(), '', key)
    assert.deepEqual([...new Set(placeholders(translated))], [...new Set(placeholders(text))], key)
  }
})

test('why a batch waits, and what to do about a failed line, is there in every language', () => {
  assert.deepEqual(Object.keys(waiting).sort(), Object.keys(WAITING_TEXTS).sort())
  for (const [key, text] of Object.entries(WAITING_TEXTS)) {
    const translated = waiting[key as keyof typeof waiting]
    assert.deepEqual([...new Set(placeholders(translated))], [...new Set(placeholders(text))], key)
  }
  for (const code of WAITING_CODES) assert.ok(Object.hasOwn(messages, `waiting.${code}`), code)
  const ofLines = Object.entries(ERRORS).filter(([, { places }]) => places.includes('line'))
  assert.deepEqual(Object.keys(advice).sort(), ofLines.map(([code]) => code).sort())
})

test('a number takes the form of its language', () => {
  assert.equal(fill('{n} {n|line|lines}', { n: 1 }, 'en'), '1 line')
  assert.equal(fill('{n} {n|line|lines}', { n: 12_000 }, 'en'), '12,000 lines')
  assert.equal(fill('{n} {n|Zeile|Zeilen}', { n: 12_000 }, 'de'), '12.000 Zeilen')
  assert.equal(fill('{a} of {b}', { a: '1' }, 'en'), '1 of ')
})

test('the language is what was chosen, else the first of the browser that there is', () => {
  assert.equal(languageOf('de', ['en-GB']), 'de')
  assert.equal(languageOf(null, ['fr-FR', 'de-AT', 'en']), 'de')
  assert.equal(languageOf('xx', ['fr']), 'en')
})

test('texts of lines at a batch API agree with their number', () => {
  const said = (lines: number, options = {}): string =>
    waitingText('remote_running', { lines, upstream: 'X' }, options)
  assert.equal(said(1), 'X has 1 line of it in a batch; its result is recorded when it has finished it.')
  assert.equal(
    said(2),
    'X has 2 lines of it in a batch; their results are recorded when it has finished them.',
  )
  const german = { texts: waiting, locale: 'de' }
  assert.match(said(1, german), /1 Zeile in einem Batch; das Ergebnis wird übernommen, wenn es fertig ist/)
})
