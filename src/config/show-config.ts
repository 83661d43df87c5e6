// The configuration in force as a person may see it: defaults filled in, secrets hidden.
import { stringify } from 'yaml'
import type { Config } from './config.ts'

const HIDDEN = '(hidden)'
const SECRET_KEYS: ReadonlySet<string> = new Set([
  'api_key',
  'master_key',
  'access_key_id',
  'secret_access_key',
  'session_token',
])

/** YAML with the units of the service: milliseconds, bytes, pico-dollars per token. */
export function configText(config: Config): string {
  return stringify(shown(config))
}

/** `key`: under which it stands; header values may hold keys, and URLs users. */
function shown(value: unknown, key = '', parent = ''): unknown {
  if (value === undefined || value === null) return null
  if (typeof value === 'string') {
    if (SECRET_KEYS.has(key) || parent === 'headers' || parent === 'env') return HIDDEN
    return value.replace(/\/\/[^/@\s]*@/g, `//${HIDDEN}@`)
  }
  if (value instanceof Map) return shown(Object.fromEntries(value), key, parent)
  if (Array.isArray(value)) return value.map((one) => shown(one, key, parent))
  if (typeof value !== 'object') return value
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, shown(one, name, key)]))
}
