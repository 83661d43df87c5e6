import assert from 'node:assert/strict'
import { test } from 'node:test'
import { negotiateLanguage } from './language.ts'

test('the language with the highest weight wins, and among equals the first', () => {
  assert.equal(negotiateLanguage('de-CH,fr;q=0.9'), 'de')
  assert.equal(negotiateLanguage('nl, fr;q=0.4, ja;q=0.8'), 'ja')
  assert.equal(negotiateLanguage('es,zh'), 'es')
})

test('readers of traditional Chinese get their next choice, or English, and no simplified characters', () => {
  for (const header of ['zh-TW', 'zh-Hant', 'zh-Hant-HK', 'zh-hk', 'zh-MO,nl'])
    assert.equal(negotiateLanguage(header), 'en', header)
  assert.equal(negotiateLanguage('zh-TW,ja;q=0.5'), 'ja')
  assert.equal(negotiateLanguage('zh-TW,zh;q=0.5'), 'zh')
  for (const header of ['zh', 'zh-CN', 'zh-Hans', 'zh-Hans-HK', 'zh-SG'])
    assert.equal(negotiateLanguage(header), 'zh', header)
})

test('without a language of ours, or with nonsense, it is English', () => {
  for (const header of [undefined, '', '*', 'nl', 'de;q=0', 'de;q=x', ';;,,'])
    assert.equal(negotiateLanguage(header), 'en', String(header))
})
