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
