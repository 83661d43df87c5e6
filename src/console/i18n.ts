// Messages in the reader's language. English is part of the first page; other languages are loaded when they are
// asked for, and what they lack is shown in English.
import { messages as english, type MessageKey } from './messages/en.ts'

export type { MessageKey } from './messages/en.ts'

export const LANGUAGES = { en: 'English', de: 'Deutsch' } as const
export type Language = keyof typeof LANGUAGES

let messages: Readonly<Partial<Record<string, string>>> = english
let locale = 'en'

/** For numbers and dates. */
export function currentLocale(): string {
  return locale
}

export function isLanguage(text: string): text is Language {
  return Object.hasOwn(LANGUAGES, text)
}

/** The first language of the reader that there is; `wished` comes before those of the browser. */
export function languageOf(wished: string | null, offered: readonly string[]): Language {
  for (const tag of [...(wished === null ? [] : [wished]), ...offered]) {
    const [language = ''] = tag.toLowerCase().split('-')
    if (isLanguage(language)) return language
  }
  return 'en'
}

/** `region` is the browser's tag of the same language, for the form of numbers and dates. */
export async function useLanguage(language: Language, region: string): Promise<void> {
  locale = region
  // While the service is gone, English is what there is.
  const german = (): Promise<typeof messages> => import('./messages/de.ts').then((de) => de.messages)
  messages = language === 'de' ? await german().catch(() => english) : english
}

type Values = Readonly<Record<string, string | number>>

/** `{name}` is replaced by a value, `{n|line|lines}` by the form that the number `n` takes. */
export function t(key: MessageKey, values: Values = {}): string {
  return fill(messages[key] ?? english[key], values, locale)
}

export function fill(message: string, values: Values, locale: string): string {
  return message.replace(
    /\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}/g,
    (_, name: string, one?: string, many?: string) => {
      const value = values[name] ?? ''
      if (one !== undefined && many !== undefined)
        return new Intl.PluralRules(locale).select(Number(value)) === 'one' ? one : many
      return typeof value === 'number' ? new Intl.NumberFormat(locale).format(value) : value
    },
  )
}
