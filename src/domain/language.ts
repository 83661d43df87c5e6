// The languages of limit errors, and the choice among them for a caller.

export const LANGUAGES = ['en', 'de', 'es', 'fr', 'ja', 'zh'] as const
export type Language = (typeof LANGUAGES)[number]

/** Script and regions of traditional Chinese (RFC 5646 subtags). */
const TRADITIONAL = ['hant', 'tw', 'hk', 'mo']

/** The best available language for an Accept-Language header (RFC 9110 §12.5.4): highest weight, then first named; else English. */
export function negotiateLanguage(header: string | undefined): Language {
  let best: { language: Language; weight: number } = { language: 'en', weight: 0 }
  for (const range of (header ?? '').slice(0, 1000).split(',')) {
    const [tag = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase())
    const [primary, ...subtags] = tag.split('-')
    // Only simplified Chinese is available: a reader of traditional Chinese gets the next choice.
    const isTraditional =
      primary === 'zh' && !subtags.includes('hans') && subtags.some((subtag) => TRADITIONAL.includes(subtag))
    const language = isTraditional ? undefined : LANGUAGES.find((available) => available === primary)
    const weight = weightOf(parameters)
    if (language !== undefined && weight > best.weight) best = { language, weight }
  }
  return best.language
}

function weightOf(parameters: readonly string[]): number {
  const q = parameters.find((parameter) => parameter.startsWith('q='))
  if (q === undefined) return 1
  const weight = Number(q.slice(2))
  return weight >= 0 && weight <= 1 ? weight : 0
}
