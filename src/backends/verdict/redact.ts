// Removes secrets from errors of servers, which quote requests, keys included, in many formats. Callers, logs and audit
// records get these errors.
import type { Secrets } from './classify.ts'

/** The shortest value that counts as a secret: removing shorter ones would garble ordinary words. */
const SECRET_LENGTH_MIN = 8
const REDACTED = '[redacted]'
const NAMED: Readonly<Record<string, string>> = { '&': 'amp', '<': 'lt', '>': 'gt', '"': 'quot', "'": 'apos' }

/** The shortest text that counts as a key in a model's output: too long to be there by chance. */
const KEY_LENGTH_MIN = 16

/** The length of the pieces of a key that are removed: servers cut and split keys. */
const PIECE_LENGTH = 12

/**
 * Builds functions that remove `secrets` from a text: as they are, in any case, as JSON, URLs, HTML and quoted strings
 * write them, in base64 and hexadecimal, and their pieces. The text must not have been cut before.
 */
export function secretsOf(secrets: readonly (string | null | undefined)[]): Secrets {
  const words = secrets.filter((value) => typeof value === 'string').flatMap(secretsIn)
  const plain = [...new Set(words)].filter((word) => word.length >= SECRET_LENGTH_MIN)
  const keys = plain.filter((word) => word.length >= KEY_LENGTH_MIN)
  const known = [...new Set([...plain, ...keys.flatMap(encodings)])]
  const redactWhole = redactor(known)
  const redactPieces = pieceRedactor(keys)
  return {
    redact: (text) => redactPieces(redactWhole(text)),
    redactKeys: redactor(known.filter((word) => word.length >= KEY_LENGTH_MIN)),
    mayBeIn: finderOf([...new Set(known.map(longestRun))].map((trace) => Buffer.from(trace))),
  }
}

/** The number of consecutive bytes in a gram. */
const GRAM = 4
const GRAM_HASH_BITS = 18

/**
 * Builds a search for `traces` in bytes. Each answer is searched in steps: the shortest trace has as many grams as a
 * step has bytes, so one of them begins where a step does.
 */
function finderOf(traces: readonly Buffer[]): Secrets['mayBeIn'] {
  const step = Math.min(...traces.map(({ length }) => length)) - GRAM + 1
  if (step < GRAM) return (bytes) => traces.some((trace) => bytes.includes(trace))
  const isOfTrace = new Uint8Array(2 ** GRAM_HASH_BITS)
  for (const trace of traces)
    for (let at = 0; at + GRAM <= trace.length; at++) isOfTrace[gramHash(trace, at)] = 1
  return (bytes) => {
    for (let at = 0; at + GRAM <= bytes.length; at += step)
      if (isOfTrace[gramHash(bytes, at)] === 1) return traces.some((trace) => bytes.includes(trace))
    return false
  }
}

function gramHash(bytes: Buffer, at: number): number {
  const gram = bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)
  return Math.imul(gram, 0x9e3779b1) >>> (32 - GRAM_HASH_BITS)
}

function redactor(words: readonly string[]): (text: string) => string {
  if (words.length === 0) return (text) => text
  const longestFirst = words.toSorted((a, b) => b.length - a.length)
  const pattern = new RegExp(longestFirst.map(spellings).join('|'), 'gi')
  return (text) => text.replace(pattern, REDACTED)
}

/** Builds a function that removes each run of a text that is made of pieces of `keys`. */
function pieceRedactor(keys: readonly string[]): (text: string) => string {
  const pieces = new Set<string>()
  for (const key of keys.map(inLowerCase)) {
    for (let at = 0; at + PIECE_LENGTH <= key.length; at++) pieces.add(key.slice(at, at + PIECE_LENGTH))
  }
  if (pieces.size === 0) return (text) => text
  return (text) => {
    const lower = inLowerCase(text)
    let left = ''
    let kept = 0
    for (let at = 0; at + PIECE_LENGTH <= lower.length; at++) {
      if (!pieces.has(lower.slice(at, at + PIECE_LENGTH))) continue
      let end = at + PIECE_LENGTH
      while (end < lower.length && pieces.has(lower.slice(end - PIECE_LENGTH + 1, end + 1))) end++
      left += text.slice(kept, at) + REDACTED
      kept = end
      at = end - 1
    }
    return left + text.slice(kept)
  }
}

/** Puts the ASCII letters of a text into lower case: other letters may change their length. */
function inLowerCase(text: string): string {
  return text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase())
}

/** The forms of `secret` within encoded text, such as a header: base64 at each of its three offsets. */
function encodings(secret: string): string[] {
  const bytes = Buffer.from(secret)
  const shifted = [0, 1, 2].flatMap((before) => {
    const all = Buffer.concat([Buffer.alloc(before), bytes])
    // Characters that also depend on neighbouring bytes are left out.
    const [from, to] = [Math.ceil((before * 8) / 6), Math.floor((all.length * 8) / 6)]
    return [all.toString('base64').slice(from, to), all.toString('base64url').slice(from, to)]
  })
  return [...shifted, bytes.toString('hex')]
}

/** The longest piece of a secret that every encoding writes alike. */
function longestRun(word: string): string {
  const runs = word.match(/[a-z0-9]+/gi) ?? []
  return runs.reduce((longest, run) => (run.length > longest.length ? run : longest), '')
}

/** The secrets in a header's value, which may be a scheme and a key, or a name and a password. */
function secretsIn(value: string): string[] {
  const words = value.split(/\s+/)
  const basic = /^basic$/i.test(words[0] ?? '') ? Buffer.from(words[1] ?? '', 'base64').toString() : ''
  return [value, ...words, basic, basic.slice(basic.indexOf(':') + 1)]
}

/** Builds a pattern for the spellings of `secret`. Each character has its own, so that they may be mixed. */
function spellings(secret: string): string {
  return Array.from(secret, (character) =>
    /[a-z0-9]/i.test(character) ? character : `(?:${formsOf(character).join('|')})`,
  ).join('')
}

function formsOf(character: string): string[] {
  const code = character.codePointAt(0) ?? 0
  const hex = code.toString(16)
  const uri = encodeURIComponent(character)
  const named = NAMED[character]
  return [
    // An escape in a quoted string, perhaps within another one.
    `\\\\{0,4}\\u${hex.padStart(4, '0')}`,
    `\\\\{1,4}u${hex.padStart(4, '0')}`,
    `\\\\{1,4}x${hex.padStart(2, '0')}`,
    // In a text encoded twice, a percent sign is %25.
    (uri === character ? `%${hex.padStart(2, '0')}` : uri).replaceAll('%', '%(?:25)?'),
    `&#0*${code};`,
    `&#x0*${hex};`,
    ...(named === undefined ? [] : [`&${named};`]),
    ...(character === ' ' ? ['\\+'] : []),
  ]
}
