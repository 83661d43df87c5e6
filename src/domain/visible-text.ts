// Text from callers and model servers (entities, filenames, messages) may hold characters that a terminal or a log
// viewer acts on instead of showing them: control characters, C1 among them, those that turn the direction of writing,
// and others that cannot be seen. Escaped as JSON escapes them, they can be seen, and JSON that holds them stays
// the same JSON.

/** Joiners of letters (U+200C, U+200D) are left: words and emoji need them, and they do nothing else. */
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

/** Beyond the first plane in two halves, as in JSON. */
function escaped(character: string): string {
  let text = ''
  for (let i = 0; i < character.length; i++)
    text += `\\u${character.charCodeAt(i).toString(16).padStart(4, '0')}`
  return text
}
