// Text that every database can store and give back as it was: PostgreSQL has no U+0000, and a surrogate that stands
// alone is no character, so that two texts which differ in nothing else become one.

const UNSTORABLE = /\0|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g

export function isStorable(text: string): boolean {
  return !text.includes('\0') && text.isWellFormed()
}

/** The text with a replacement character for whatever cannot be stored. */
export function storableText(text: string): string {
  return isStorable(text) ? text : text.replace(UNSTORABLE, '\ufffd')
}

/** What is wrong with the text, as the end of a sentence that names it; null when nothing is. */
export function unstorable(text: string): string | null {
  if (text.includes('\0')) return 'holds the character U+0000, which cannot be stored'
  return text.isWellFormed() ? null : 'holds half of a surrogate pair, which is no character'
}
