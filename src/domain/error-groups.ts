// The failed lines of a batch, counted by code and by the pattern of their message. Their number is bounded: beyond it
// a code has one group for all its further messages.

export interface ErrorGroup {
  code: string
  /** Null for the messages of a code that found no group of their own. */
  pattern: string | null
  /** That of the first line. */
  message: string
  lines: number
}

const GROUPS_MAX = 40
const MESSAGE_CHARACTERS_MAX = 500

export function groupErrors(errors: Iterable<{ code: string; message: string }>): ErrorGroup[] {
  const groups = new Map<string, ErrorGroup>()
  let last: { code: string; message: string; group: ErrorGroup } | undefined
  for (const { code, message } of errors) {
    // Lines that fail together mostly fail alike.
    if (last?.code !== code || last.message !== message) {
      const pattern = errorPattern(message)
      const key = `${code}\n${pattern}`
      const group = groups.get(key) ?? {
        ...{ code, pattern, lines: 0 },
        message: message.slice(0, MESSAGE_CHARACTERS_MAX),
      }
      groups.set(key, group)
      last = { code, message, group }
    }
    last.group.lines++
  }
  return [...groups.values()]
}

/** `known` with the lines of `more`, which may be negative: lines that are taken back. */
export function addErrorGroups(known: readonly ErrorGroup[], more: readonly ErrorGroup[]): ErrorGroup[] {
  const groups = known.map((group) => ({ ...group }))
  const find = (code: string, pattern: string | null): ErrorGroup | undefined =>
    groups.find((group) => group.code === code && group.pattern === pattern)
  for (const one of more) {
    const own = find(one.code, one.pattern) ?? (one.lines < 0 ? find(one.code, null) : undefined)
    const isFull = groups.length >= GROUPS_MAX
    const group = own ?? (isFull ? find(one.code, null) : undefined)
    if (group) group.lines += one.lines
    else if (one.lines > 0) groups.push({ ...one, pattern: isFull ? null : one.pattern })
  }
  return groups.filter(({ lines }) => lines > 0)
}

// What messages of one kind have in common: numbers, IDs and whatever else has a digit in it differ from line to line.

const WORDS_WITH_DIGITS = /\w*\d\w*/g
const CHARACTERS_MAX = 200

/** Each word that has a digit becomes `0`. */
export function errorPattern(message: string): string {
  return message.replace(WORDS_WITH_DIGITS, '0').slice(0, CHARACTERS_MAX)
}
