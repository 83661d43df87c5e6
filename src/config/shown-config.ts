// The configuration in force as operators may read it: everything but secrets. Secrets are found by the names of their
// keys and by the form of URLs, so that a key that is added later is hidden rather than forgotten.
import type { Config } from './config.ts'

export const HIDDEN = '(hidden)'

const SECRET_NAMES = /key|secret|token|password|credential|authorization/i
/** Names that say where a secret is found, not what it is. */
const PLACES = /_(file|env)$/
/** Whatever they hold was written for somebody else. */
const SECRET_GROUPS = ['headers', 'env']

export function shownConfig(config: Config): Record<string, unknown> {
  return Object.fromEntries(Object.entries(config).map(([name, value]) => [name, shown(name, value)]))
}

function shown(name: string, value: unknown): unknown {
  if (value === null || value === undefined) return null
  if (typeof value === 'string') {
    if (SECRET_NAMES.test(name) && !PLACES.test(name)) return HIDDEN
    return withoutPassword(value)
  }
  if (typeof value === 'bigint') return String(value)
  if (typeof value !== 'object') return typeof value === 'function' ? undefined : value
  if (Array.isArray(value)) return value.map((item) => shown(name, item))
  const entries: [string, unknown][] =
    value instanceof Map
      ? [...value].map(([key, item]): [string, unknown] => [String(key), item])
      : Object.entries(value)
  return Object.fromEntries(
    entries.map(([key, item]) => [key, SECRET_GROUPS.includes(name) ? HIDDEN : shown(key, item)]),
  )
}

/** `postgres://user@host/db` keeps its user, and its query may hold a password too. */
function withoutPassword(text: string): string {
  if (!/^[a-z][a-z0-9+.-]*:\/\//i.test(text) || !URL.canParse(text)) return text
  const url = new URL(text)
  if (url.password === '' && !SECRET_NAMES.test(url.search)) return text
  if (url.password !== '') url.password = 'hidden'
  for (const name of [...url.searchParams.keys()])
    if (SECRET_NAMES.test(name)) url.searchParams.set(name, 'hidden')
  return url.href
}
