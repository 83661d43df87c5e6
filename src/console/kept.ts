// Values that the browser keeps for its reader. A browser may refuse to: they last as long as the page then.
import { useState } from 'preact/hooks'
import { signedInKey } from './session.ts'

const PREFIX = 'offpeak.'

export function kept(name: string): string | null {
  try {
    return localStorage.getItem(PREFIX + name)
  } catch {
    return null
  }
}

export function keep(name: string, value: string): void {
  try {
    localStorage.setItem(PREFIX + name, value)
  } catch {
    // The value is then kept as long as the page.
  }
}

/** The fields of a form as they were left in this tab. */
export function keptDraft(name: string): Record<string, string> {
  try {
    return JSON.parse(sessionStorage.getItem(PREFIX + name) ?? '{}')
  } catch {
    return {}
  }
}

export function keepDraft(name: string, fields: Readonly<Record<string, string>>): void {
  try {
    sessionStorage.setItem(PREFIX + name, JSON.stringify(fields))
  } catch {
    // A table may be larger than what a browser stores. The draft before it is not what the form has.
    dropDraft(name)
  }
}

export function dropDraft(name: string): void {
  try {
    sessionStorage.removeItem(PREFIX + name)
  } catch {
    // Nothing was kept.
  }
}

/** The name of a list in the browser's storage: each key has its own lists. */
const listName = (name: string): string => `${name}.${signedInKey()}`

export function keepList<T>(name: string, list: readonly T[]): void {
  keep(listName(name), JSON.stringify(list))
}

export function keptList<T>(name: string): T[] {
  try {
    const list: unknown = JSON.parse(kept(listName(name)) ?? '[]')
    return Array.isArray(list) ? list : []
  } catch {
    return []
  }
}

/** A list that the browser stores, and the function that changes it. */
export function useKept<T>(name: string): [readonly T[], (list: readonly T[]) => void] {
  const [list, setList] = useState<readonly T[]>(() => keptList<T>(name))
  const set = (changed: readonly T[]): void => {
    keepList(name, changed)
    setList(changed)
  }
  return [list, set]
}
