// Shows the configuration in force as `offpeak config show` prints it and operators read it: everything but secrets.
// Keys are declared to be secret where they are described (schema.ts). A text under a name that is not described there,
// such as a key that was looked up in the environment, is hidden unless it is listed here; URLs are shown without their
// secrets.
import { stringify } from 'yaml'
import { HIDDEN, withoutUrlSecrets } from '../domain/text.ts'
import { CONFIG_FILE } from './schema.ts'
import { RULES, type Shape } from './shape.ts'

/** Names in the configuration in force that the file does not have. */
const MADE = [
  'kind',
  'path',
  'url',
  'root',
  'bucket',
  'prefix',
  'endpoint',
  'text',
  'metrics_url',
  'selector',
  'service_name',
]

/** Whether the texts of a key are secret, by the key's name. */
const KEYS = new Map(MADE.map((name) => [name, false]))
collect(CONFIG_FILE)

function collect(shape: Shape): void {
  const { properties, items, anyOf, additionalProperties } = shape
  for (const [name, one] of Object.entries(properties ?? {})) {
    KEYS.set(name, (KEYS.get(name) ?? false) || isSecret(one))
    collect(one)
  }
  for (const one of [items, additionalProperties, ...(anyOf ?? [])]) if (one) collect(one)
}

/** Whether the values of a map or a list are secrets. */
function isSecret(shape: Shape): boolean {
  const { items, additionalProperties } = shape
  return [shape, items, additionalProperties].some((one) => one && one[RULES].secret === true)
}

export function isSecretKey(name: string): boolean {
  return KEYS.get(name) ?? true
}

/** The configuration to show, in the service's units: milliseconds, bytes, pico-dollars per token. */
export function shownConfig(config: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(config).map(([name, value]) => [name, shown(name, value)]))
}

/** The shown configuration, also as YAML. Not `import('yaml')`, which has only a default export in dist/. */
export function shownConfigAsYaml(config: object): { values: object; yaml: string } {
  const values = shownConfig(config)
  return { values, yaml: stringify(values) }
}

function shown(name: string, value: unknown): unknown {
  if (value === null || value === undefined) return null
  if (typeof value === 'string') return isSecretKey(name) ? HIDDEN : withoutUrlSecrets(value)
  if (typeof value === 'bigint') return String(value)
  if (typeof value !== 'object') return typeof value === 'function' ? undefined : value
  if (name === 'command' && Array.isArray(value)) return value.map(shownWord)
  if (Array.isArray(value)) return value.map((item) => shown(name, item))
  const entries: [string, unknown][] =
    value instanceof Map
      ? [...value].map(([key, item]): [string, unknown] => [String(key), item])
      : Object.entries(value)
  const isHidden = KEYS.get(name) === true
  return Object.fromEntries(entries.map(([key, item]) => [key, isHidden ? HIDDEN : shown(key, item)]))
}

const SECRET_OPTION = /^--?[\w-]*(key|token|secret|password|credential|auth)[\w-]*(=|$)/i
const PLACEHOLDER = /\{\w+\}$/

/** The word of a command to show: the value after an option for a secret is hidden. */
function shownWord(word: string, at: number, words: readonly string[]): string {
  const [option = '', , sign = ''] = SECRET_OPTION.exec(word) ?? []
  if (sign === '=' && !PLACEHOLDER.test(word)) return `${option}${HIDDEN}`
  const [, , before] = SECRET_OPTION.exec(words[at - 1] ?? '') ?? []
  return before === '' && !PLACEHOLDER.test(word) ? HIDDEN : withoutUrlSecrets(word)
}
