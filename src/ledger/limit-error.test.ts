import assert from 'node:assert/strict'
import { describe, it, test } from 'node:test'
import type { Counter } from './counters.ts'
import { batchLimitError, LANGUAGES, lineLimitError, negotiateLanguage } from './limit-error.ts'

const END = Date.UTC(2026, 11, 1)

function counter(part: Partial<Counter['limit']> = {}, spender = 'user:42'): Counter {
  return {
    limit: {
      id: 'lim_1',
      project_id: 'proj_1',
      scope: 'entity',
      subject: 'user:42',
      model: '',
      metric: 'cost_usd',
      amount: 25_000_000_000,
      window: 'month',
      action: 'block',
      description: null,
      notify_at: '[]',
      created: 0,
      ...part,
    },
    spender,
    account: '',
    window: { start: Date.UTC(2026, 10, 1), end: END },
    spent: 24_999_000_001,
  }
}

describe('the message of a limit', () => {
  it('says it in each language, with money and date as that language writes them', () => {
    const shown: Record<string, RegExp> = {
      en: /\$25\.00 .*\$24\.999000001 .*December 1, 2026/,
      de: /25,00\s\$ .*24,999000001\s\$ .*1\. Dezember 2026/,
      es: /25,00\sUS\$ .*1 de diciembre de 2026/,
      fr: /25,00\s\$US .*1\S* décembre 2026/,
      ja: /\$25\.00.*2026年12月1日/,
      zh: /US\$25\.00.*2026年12月1日/,
    }
    for (const language of LANGUAGES) {
      const { message } = lineLimitError(counter(), 2_000_000, false, language)
      assert.match(message, shown[language] ?? /never/, language)
      assert.ok(message.includes('user:42'), message)
      assert.ok(!/[{}]/.test(message), message)
    }
    const again = LANGUAGES.map((language) => lineLimitError(counter(), 1, true, language).message)
    assert.match(again[0] ?? '', /It was sent without an answer, is not sent again and is not billed/)
    for (const [i, language] of LANGUAGES.entries())
      assert.notEqual(again[i], lineLimitError(counter(), 1, false, language).message, language)
    const said = LANGUAGES.map(
      (language) => batchLimitError(counter(), { projected: 1, projectedOpen: 2 }, language, 0).message,
    )
    assert.equal(new Set(said).size, LANGUAGES.length)
  })

  it('agrees with the number', () => {
    const said: Record<string, [one: RegExp, two: RegExp]> = {
      en: [/1 request is used/, /2 requests are used/],
      de: [/1 Anfrage ist verbraucht/, /2 Anfragen sind verbraucht/],
      es: [/se ha consumido 1 solicitud /, /se han consumido 2 solicitudes /],
      fr: [/1 requête a été consommée /, /2 requêtes ont été consommées /],
    }
    for (const language of LANGUAGES)
      for (const [i, shown] of said[language]?.entries() ?? []) {
        const spent = { ...counter({ metric: 'requests', amount: 2 }), spent: i + 1 }
        assert.match(lineLimitError(spent, 1, false, language).message, shown)
        const more = { projected: 1, projectedOpen: 1 }
        assert.match(batchLimitError(spent, more, language, 0).message, shown)
      }
    assert.match(lineLimitError(counter(), 1, false, 'fr').message, /\$US ont été consommés/)
  })

  it('ends with the description, whatever characters it holds', () => {
    const described = counter({ description: "Ask {ops}, <b>#</b> or 'it'." })
    for (const language of LANGUAGES)
      assert.ok(
        lineLimitError(described, 1, false, language).message.includes("Ask {ops}, <b>#</b> or 'it'."),
      )
  })

  it('names the project where that is what the limit counts, and an entity that is called so otherwise', () => {
    assert.match(
      lineLimitError(counter({ scope: 'project' }, ''), 1, false, 'en').message,
      /for this project/,
    )
    assert.match(lineLimitError(counter({}, 'project'), 1, false, 'en').message, /for “project”/)
  })

  it('carries the limit and the end of its window, and says when to come back', () => {
    const apiError = batchLimitError(counter(), { projected: 1, projectedOpen: 0 }, 'en', END - 90_500)
    assert.deepEqual(apiError.details, { limit_id: 'lim_1', resets_at: END / 1000 })
    assert.deepEqual([apiError.status, apiError.retryAfterS], [429, 91])
    const { type, code, limit_id, resets_at } = lineLimitError(counter(), 1, false, 'en')
    assert.deepEqual(
      [type, code, limit_id, resets_at],
      ['rate_limit_error', 'usage_limit_exceeded', 'lim_1', END / 1000],
    )
  })
})

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
