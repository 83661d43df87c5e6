// What messages of one kind have in common: numbers, IDs and whatever else has a digit in it differ from line to line.

const WORDS_WITH_DIGITS = /\w*\d\w*/g
const CHARACTERS_MAX = 200

/** Each word that has a digit becomes `0`. */
export function errorPattern(message: string): string {
  return message.replace(WORDS_WITH_DIGITS, '0').slice(0, CHARACTERS_MAX)
}
