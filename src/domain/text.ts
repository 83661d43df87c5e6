// Text that every database stores and returns unchanged: PostgreSQL rejects U+0000, and unpaired surrogates are not
// characters, so two texts that differ only in those would become equal.

const UNSTORABLE = /\0|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g

/** Of JSON Schema; unpaired surrogates cannot be sent as UTF-8. */
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
// viewer interprets: control characters, bidirectional controls, and invisible characters. They are escaped as in
// JSON, so they become visible, and JSON that contains them keeps its meaning.

/** Joiners (U+200C, U+200D) stay: words and emoji need them. */
const UNSEEN = /(?![\u200c\u200d])[\p{Cc}\p{Cf}\u2028\u2029]/gu
const UNSEEN_IN_LINES = /(?![\n\u200c\u200d])[\p{Cc}\p{Cf}\u2028\u2029]/gu

/** One line, whatever the text. */
export function visible(text: string): string {
  return text.replaceAll(UNSEEN, escaped)
}

/** The same, but line feeds stay. */
export function visibleLines(text: string): string {
  return text.replaceAll(UNSEEN_IN_LINES, escaped)
}

/** A character beyond the first plane becomes a surrogate pair, as in JSON. */
function escaped(character: string): string {
  let text = ''
  for (let i = 0; i < character.length; i++)
    text += `\\u${character.charCodeAt(i).toString(16).padStart(4, '0')}`
  return text
}

/** The names of a list in JSON that are known. */
export function namesIn<T extends string>(json: string, known: readonly T[]): T[] {
  const listed: unknown = JSON.parse(json)
  return Array.isArray(listed) ? listed.flatMap((one) => known.find((name) => name === one) ?? []) : []
}
