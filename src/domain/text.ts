// Rules for text that is stored and shown. Every database stores and returns it unchanged: PostgreSQL rejects U+0000,
// and unpaired surrogates are not characters, so two texts that differ only in those would become equal.
const UNSTORABLE = /\0|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g

/** The JSON Schema pattern of texts that can be stored; unpaired surrogates cannot be sent as UTF-8. */
export const STORABLE_PATTERN = '^[^\\u0000]*$'

export function isStorable(text: string): boolean {
  return !text.includes('\0') && text.isWellFormed()
}

/** The text with each character that cannot be stored replaced by U+FFFD. */
export function storableText(text: string): string {
  return isStorable(text) ? text : text.replace(UNSTORABLE, '\ufffd')
}

/** The problem of the text as the predicate of a sentence; null when there is none. */
export function unstorable(text: string): string | null {
  if (text.includes('\0')) return 'contains the character U+0000, which cannot be stored'
  return text.isWellFormed() ? null : 'contains an unpaired surrogate, which cannot be stored'
}

// Text from callers and model servers (entities, filenames, messages) may contain characters that a terminal or a log
// viewer interprets: control characters, bidirectional controls, and invisible characters. They are escaped as in JSON,
// so they become visible, and JSON that contains them keeps its meaning.

/** Characters that are escaped, without the joiners (U+200C, U+200D), which words and emoji need. */
const UNSEEN = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\u2028\u2029]/gu
const UNSEEN_IN_LINES = /(?![\n\u200c\u200d])[\p{Cc}\p{Cf}\u2028\u2029]/gu

/** The text on one line, with escapes for UNSEEN characters and line feeds. */
export function visible(text: string): string {
  return text.replaceAll(UNSEEN, escaped)
}

/** The text with escapes for UNSEEN characters but not for line feeds. */
export function visibleLines(text: string): string {
  return text.replaceAll(UNSEEN_IN_LINES, escaped)
}

/** The JSON escape of a character; beyond the first plane, of its surrogate pair. */
function escaped(character: string): string {
  let text = ''
  for (let i = 0; i < character.length; i++)
    text += `\\u${character.charCodeAt(i).toString(16).padStart(4, '0')}`
  return text
}

/** The text for a message, clipped to `length_max`. */
export function shortened(text: string, length_max: number): string {
  return text.length > length_max ? `${text.slice(0, length_max)}\u2026` : text
}

/** A name from a file, quoted for a message. */
export function quoted(name: string): string {
  return JSON.stringify(shortened(name, 100))
}

/** A number with the words that it takes: `1 line is`, `2 lines are`. `many`: by default, `one` with an s. */
export function counted(count: number, one: string, many = `${one}s`, shown = String(count)): string {
  return `${shown} ${count === 1 ? one : many}`
}

/** Ends `text` with a full stop, so that another sentence can follow. */
export function sentence(text: string): string {
  return /[.!?\u2026]$/.test(text) ? text : `${text}.`
}

/** The known names in a JSON list. */
export function namesIn<T extends string>(json: string, known: readonly T[]): T[] {
  const listed: unknown = JSON.parse(json)
  return Array.isArray(listed) ? listed.flatMap((one) => known.find((name) => name === one) ?? []) : []
}

// The secrets that this service generates have a distinctive form, so they can be found and removed in any text that
// is stored or logged: a response, a path, an error message.

export const SECRET_MARKER = '[secret]'

/**
 * API keys (domain/api-key.ts), tokens of the console (domain/api-key.ts) and the secrets that sign webhook
 * requests (notify/webhook-signature.ts).
 */
const SECRETS = /opk_[a-z0-9-]+_[0-9a-z]{26}_[\w-]+|opc_[\w-]{43}|whsec_[A-Za-z0-9+/_-]{16,}={0,2}/g

/** Replaces secrets. JSON stays JSON, since no secret contains a character that JSON escapes. */
export function withoutSecrets(text: string): string {
  const mayHoldOne = text.includes('opk_') || text.includes('opc_') || text.includes('whsec_')
  return mayHoldOne ? text.replaceAll(SECRETS, SECRET_MARKER) : text
}

/** The text that is shown instead of a configured secret. */
export const HIDDEN = '(hidden)'

// URLs, each part matched once: a URL ends where the next one begins, and optional parts are bounded. A URL with HIDDEN
// in it stays as it is.
const ANY_URL = /(?:postgres(?:ql)?)?:\/\/(?:(?!:\/\/)[^\s"'<>\\`])*(?:(?<=\(hidden\))|(?<![.,:;!?)]))/gi
const PARTS = /^(postgres(?:ql)?)?:\/\/([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?$/i
/** An authority without `@`: a list of hosts with ports, or a variable for a port. */
const HOSTS = /^(?:[^:@,[\]]*|\[[0-9a-f:.]+\])(?::(?:\d+|\{\w+\}))?(?:,[\w.-]+(?::\d+)?)*$/i
/** Query parameters whose values are no secrets; all others may be. */
const SHOWN_PARAMETERS = new Set([
  ...[
    'sslmode',
    'application_name',
    'connect_timeout',
    'target_session_attrs',
    'host',
    'port',
    'user',
    'dbname',
  ],
  ...['endpoint', 'region', 'path_style', 'api-version', 'api_version', 'version'],
  ...['limit', 'starting_after', 'order', 'status', 'purpose', 'format', 'part', 'after'],
])

/** Hides user and password, the values of unknown query parameters and the fragment in any URL of a text. */
export function withoutUrlSecrets(text: string): string {
  return text.includes('://') ? text.replace(ANY_URL, shownUrl) : text
}

function shownUrl(url: string): string {
  const [, scheme, authority = '', path = '', query, fragment] = PARTS.exec(url) ?? []
  const shownQuery = query === undefined ? '' : `?${query.split('&').map(shownParameter).join('&')}`
  const address = scheme === undefined ? shownAddress(authority, path) : shownDatabase(authority, path)
  return `${scheme ?? ''}://${address}${shownQuery}${fragment === undefined ? '' : `#${HIDDEN}`}`
}

function shownAddress(authority: string, path: string): string {
  const text = authority + path
  if (HOSTS.test(authority)) return text
  // A password may contain a slash.
  const at = text.lastIndexOf('@')
  return at === -1 ? HIDDEN : `${HIDDEN}${text.slice(at)}`
}

/** The authority of a database URL without its password, which may contain any character; the user is shown. */
function shownDatabase(authority: string, path: string): string {
  const text = authority + path
  const at = text.lastIndexOf('@')
  if (at === -1) return HOSTS.test(authority) ? text : HIDDEN
  const [, user, colon] = /^([\w.-]+)(:|$)/.exec(text.slice(0, at)) ?? []
  if (user === undefined) return `${HIDDEN}${text.slice(at)}`
  return `${user}${colon === ':' ? `:${HIDDEN}` : ''}${text.slice(at)}`
}

function shownParameter(parameter: string): string {
  const equals = parameter.indexOf('=')
  if (equals === -1) return SHOWN_PARAMETERS.has(parameter) ? parameter : HIDDEN
  const [name, value] = [parameter.slice(0, equals), parameter.slice(equals + 1)]
  if (!SHOWN_PARAMETERS.has(name)) return `${name}=${HIDDEN}`
  return value.includes('%')
    ? `${name}=${withoutUrlSecrets(decoded(value))}`
    : `${name}=${withoutUrlSecrets(value)}`
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return HIDDEN
  }
}

// Suggestions for misspelt names.

/** The closest of `names` to `wrong`; null when none is close enough to be worth suggesting. */
export function nearest(wrong: string, names: Iterable<string>): string | null {
  let best: string | null = null
  // Two changed letters make another word of a short name.
  let bestDistance = Math.max(1, Math.floor(wrong.length / 3)) + 1
  for (const name of names) {
    const begun = wrong.length >= 4 && withoutCase(name).startsWith(withoutCase(wrong))
    const distance = begun ? 1 : editDistance(withoutCase(wrong), withoutCase(name))
    // A suggestion with fewer than half of its letters in common would mislead.
    if (distance < bestDistance && distance * 2 <= name.length) {
      best = name
      bestDistance = distance
    }
  }
  return best
}

/** The name without case and kinds of dashes, which do not distinguish names. */
function withoutCase(name: string): string {
  return name.toLowerCase().replaceAll('-', '_')
}

/** The number of insertions, deletions, substitutions and swaps of neighbours (optimal string alignment). */
function editDistance(a: string, b: string): number {
  let before: number[] = []
  let last = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const row = [i]
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1]
      let cost = Math.min(row[j - 1]! + 1, last[j]! + 1, last[j - 1]! + (same ? 0 : 1))
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        cost = Math.min(cost, before[j - 2]! + 1)
      }
      row.push(cost)
    }
    before = last
    last = row
  }
  return last[b.length]!
}
