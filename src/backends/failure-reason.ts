// The reason of a failed attempt, in parts for different readers: callers, operators and the log. A server's error may
// quote requests of other tenants, and name addresses that only operators may know.
import { isIPv6 } from 'node:net'

export interface FailureReason {
  /** The reason of the failure in our words, with the server's status: for everybody. */
  reason: string
  /** The server's message: for operators and, without addresses, for the caller of the line. */
  words?: string | undefined
  /** The reason for operators, with addresses and advice. Callers then get no `words` either, unless `showsWords`. */
  operatorReason?: string | undefined
  showsWords?: boolean
}

/** The text of a failure for the caller of the line. */
export function reasonForCaller({ reason, words, operatorReason, showsWords }: FailureReason): string {
  return operatorReason === undefined || showsWords
    ? quoting(reason, words && withoutAddresses(words))
    : reason
}

export function reasonForOperator({ reason, words, operatorReason }: FailureReason): string {
  return quoting(operatorReason ?? reason, words)
}

/** The text of a failure for logs, without the server's message, which may quote content. */
export function reasonForLog({ reason, operatorReason }: FailureReason): string {
  return operatorReason ?? reason
}

function quoting(reason: string, words = ''): string {
  return words === '' ? reason : `${reason}: ${words}`
}

const HIDDEN = '[address]'
const INTERNAL = 'local|internal|lan|svc|intranet|corp|arpa'
const INTERNAL_HOST = new RegExp(`\\.(?:${INTERNAL})$`, 'i')
const URL_AUTHORITY = /(?<=\bhttps?:\/\/)[^\s/?#"'<>()]+/gi
/** The beginning of a name with dots: a search that begins inside of one would read the rest of it again and again. */
const BEGINNING = '(?<![\\w-]|[\\w-]\\.)'
const HOSTS = [
  /\blocalhost\b(?::\d+)?/gi,
  new RegExp(`${BEGINNING}[\\w-]+(?:\\.[\\w-]+)*\\.(?:${INTERNAL})\\b(?::\\d+)?`, 'gi'),
  new RegExp(`${BEGINNING}[\\w-]+(?:\\.[\\w-]+)+:\\d{2,5}\\b`, 'g'),
  // The forms in which resolvers and HTTP clients name the host that they cannot reach.
  /(?<=\b(?:to host|lookup|ENOTFOUND|EAI_AGAIN|resolve(?: host)?:?|dial tcp:?|host=|server at) ?['"]?)[\w-]+(?:\.[\w-]+)+(?::\d+)?/gi,
  /(?<=\b(?:to host|lookup|ENOTFOUND|EAI_AGAIN|resolve host:?|host=) ?['"]?)[\w-]+(?::\d+)?/gi,
  /\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b/g,
]
const MAYBE_IPV6 = /\[?(?<![\w:])([0-9a-f]*:[0-9a-f:]*:[0-9a-f.]*)(?![\w:])(?:\]:\d+|\])?/gi

/** Removes addresses and internal host names from a server's message. */
export function withoutAddresses(words: string): string {
  const text = words.replace(URL_AUTHORITY, (authority) => {
    const host = authority.replace(/^.*@/, '')
    const name = host.replace(/:\d+$/, '')
    return !name.includes('.') || INTERNAL_HOST.test(name) ? HIDDEN : host
  })
  return HOSTS.reduce((left, pattern) => left.replace(pattern, HIDDEN), text).replace(
    MAYBE_IPV6,
    // `::` names no host, and is written in grammars and in C++.
    (all, address: string) => (isIPv6(address) && address !== '::' ? HIDDEN : all),
  )
}
