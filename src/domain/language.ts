// The languages that messages of limit errors are written in, and which of them a caller wants.

export const LANGUAGES = ['en', 'de', 'es', 'fr', 'ja', 'zh'] as const
export type Language = (typeof LANGUAGES)[number]

/** Script and regions of traditional Chinese (RFC 5646 subtags). */
const TRADITIONAL = ['hant', 'tw', 'hk', 'mo']

/** The best of ours for an Accept-Language header (RFC 9110 §12.5.4): highest weight, then first named; English if none. */
export function negotiateLanguage(header: string | undefined): Language {
  let best: { language: Language; weight: number } = { language: 'en', weight: 0 }
  for (const range of (header ?? '').slice(0, 1000).split(',')) {
    const [tag = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase())
    const [primary, ...subtags] = tag.split('-')
    // Our Chinese is written in simplified characters: readers of traditional ones get their next choice.
    const isTraditional =
      primary === 'zh' && !subtags.includes('hans') && subtags.some((subtag) => TRADITIONAL.includes(subtag))
    const language = isTraditional ? undefined : LANGUAGES.find((ours) => ours === primary)
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
