// The secrets that this service generates have a distinctive form, so they can be found and removed in any text that
// is stored or logged: a response, a path, an error message.

/** Replaces a secret. */
export const SECRET_MARKER = '[secret]'

/**
 * API keys (domain/api-key.ts), tokens of the console (domain/api-key.ts) and the secrets that sign webhook
 * requests (notify/signing.ts).
 */
const SECRETS = /opk_[a-z0-9-]+_[0-9a-z]{26}_[\w-]+|opc_[\w-]{43}|whsec_[A-Za-z0-9+/_-]{16,}={0,2}/g

/** The result for JSON is JSON: no secret contains a character that JSON escapes. */
export function withoutSecrets(text: string): string {
  const mayHoldOne = text.includes('opk_') || text.includes('opc_') || text.includes('whsec_')
  return mayHoldOne ? text.replaceAll(SECRETS, SECRET_MARKER) : text
}

/** What is shown in place of a secret of the configuration. */
export const HIDDEN = '(hidden)'

// Each part of a text is looked at once: a URL ends where the next one begins, and what is optional is bounded.
const ANY_URL = /(?:postgres(?:ql)?)?:\/\/(?:(?!:\/\/)[^\s"'<>\\`])*(?<![.,:;!?)])/gi
const PARTS = /^(postgres(?:ql)?)?:\/\/([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?$/i
/** What stands before the path where no `@` does: a list of hosts with ports, or what a port is put in for. */
const HOSTS = /^(?:[^:@,[\]]*|\[[0-9a-f:.]+\])(?::(?:\d+|\{\w+\}))?(?:,[\w.-]+(?::\d+)?)*$/i
/** Values of a query that are no secret; all others may be. */
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

/** Hides, in any URL of a text: user and password, what a query gives for names that are not known, the fragment. */
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
  // A slash may be part of a password.
  const at = text.lastIndexOf('@')
  return at === -1 ? HIDDEN : `${HIDDEN}${text.slice(at)}`
}

/** The user of a database is no secret, and its password may have any character in it. */
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
