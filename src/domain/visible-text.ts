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
