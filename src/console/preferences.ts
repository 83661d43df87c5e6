// Stores the reader's preferences in the browser: colours and language.
import { isLanguage, type Language, languageOf, useLanguage as loadLanguage } from './i18n.ts'

export const THEMES = ['auto', 'light', 'dark'] as const
type Theme = (typeof THEMES)[number]

const THEME = 'offpeak.theme'
const LANGUAGE = 'offpeak.language'

/** A browser may refuse to keep anything. */
function kept(name: string): string | null {
  try {
    return localStorage.getItem(name)
  } catch {
    return null
  }
}

function keep(name: string, value: string): void {
  try {
    localStorage.setItem(name, value)
  } catch {
    // It lasts as long as the page then.
  }
}

export function theme(): Theme {
  return THEMES.find((name) => name === kept(THEME)) ?? 'auto'
}

export function setTheme(name: Theme): void {
  keep(THEME, name)
  document.documentElement.dataset.theme = name
}

export function language(): Language {
  return languageOf(kept(LANGUAGE), navigator.languages)
}

/** The page has to be loaded again for every text to follow. */
export function setLanguage(name: string): void {
  if (isLanguage(name)) keep(LANGUAGE, name)
  location.reload()
}

export async function applyPreferences(): Promise<void> {
  document.documentElement.dataset.theme = theme()
  const name = language()
  document.documentElement.lang = name
  await loadLanguage(name, navigator.languages.find((tag) => tag.toLowerCase().startsWith(name)) ?? name)
}
