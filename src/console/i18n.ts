// Messages in the reader's language. What the service says in English is loaded in another language on request.
import { fill, WAITING_TEXTS, type WaitingTextKey } from '../domain/waiting-text.ts'
import { type MessageKey, messages } from './messages/texts.ts'

export type { MessageKey } from './messages/texts.ts'

export const LANGUAGES = { en: 'English', de: 'Deutsch' } as const
export type Language = keyof typeof LANGUAGES

let texts: typeof messages = messages
let index: 0 | 1 = 0
let waiting: Readonly<Record<WaitingTextKey, string>> = WAITING_TEXTS
/** The advice of errors in the reader's language; empty for English, which the service itself sends. */
let advice: Readonly<Partial<Record<string, string>>> = {}

/** The texts of waiting reasons in the reader's language, for `waitingText`. */
export const waitingTexts = (): Readonly<Record<WaitingTextKey, string>> => waiting

/** The advice on a failed line in the reader's language; `inEnglish`: the service's text. */
export const adviceOn = (code: string, inEnglish: string): string => advice[code] ?? inEnglish
let locale = 'en'

/** The locale of numbers and dates. */
export const currentLocale = (): string => locale

export function isLanguage(text: string): text is Language {
  return Object.hasOwn(LANGUAGES, text)
}

/** The first available language of the reader; `wished` comes before those of the browser. */
export function languageOf(wished: string | null, offered: readonly string[]): Language {
  for (const tag of [...(wished === null ? [] : [wished]), ...offered]) {
    const [language = ''] = tag.toLowerCase().split('-')
    if (isLanguage(language)) return language
  }
  return 'en'
}

/** Switches the language. `region`: the browser's tag of the language, for the form of numbers and dates. */
export async function useLanguage(language: Language, region: string): Promise<void> {
  locale = region
  // Without the service, only English is available.
  const german = language === 'de' ? await import('./messages/de.ts').catch(() => null) : null
  texts = german?.texts ?? messages
  index = german ? 1 : 0
  waiting = german?.waiting ?? WAITING_TEXTS
  advice = german?.advice ?? {}
}

type Values = Readonly<Record<string, string | number>>

/** A text with its values: see `fill`. */
export const t = (key: MessageKey, values: Values = {}): string => fill(texts[key][index], values, locale)
