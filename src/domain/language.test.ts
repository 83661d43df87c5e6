import assert from 'node:assert/strict'
import { test } from 'node:test'
import { negotiateLanguage } from './language.ts'

test('the language with the highest weight wins, and among equals the first', () => {
  assert.equal(negotiateLanguage('de-CH,fr;q=0.9'), 'de')
  assert.equal(negotiateLanguage('nl, fr;q=0.4, ja;q=0.8'), 'ja')
  assert.equal(negotiateLanguage('es,zh'), 'es')
})

test('without a language of ours, or with nonsense, it is English', () => {
  for (const header of [undefined, '', '*', 'nl', 'de;q=0', 'de;q=x', ';;,,'])
    assert.equal(negotiateLanguage(header), 'en', String(header))
})
