// Generates a string that a regular expression matches. The pattern is parsed and never run, so a pattern that would
// backtrack forever does no harm. Literals, classes, groups, alternatives, quantifiers and anchors are supported; any
// other construct (lookaround, back-references, \p) gives null.
import type { SeededRandom } from './seeded-random.ts'
import type { GenerationBudget } from './sim-request.ts'

type Part = { kind: 'chars'; chars: string } | { kind: 'group'; options: Repeat[][] }

interface Repeat {
  part: Part
  min: number
  max: number
}

const DIGITS = '0123456789'
const LETTERS = 'abcdefghijklmnopqrstuvwxyz'
const WORD = `${LETTERS}${LETTERS.toUpperCase()}${DIGITS}_`
const PRINTABLE = Array.from({ length: 95 }, (_, i) => String.fromCharCode(32 + i)).join('')
/** What letters stand for behind a backslash. */
const ESCAPES: Readonly<Record<string, string>> = {
  d: DIGITS,
  w: WORD,
  s: ' ',
  D: without(PRINTABLE, DIGITS),
  W: without(PRINTABLE, WORD),
  S: without(PRINTABLE, ' '),
  ...{ n: '\n', t: '\t', r: '\r', f: '\f', v: '\v', 0: '\0' },
}
const REPEAT_MAX = 10_000
const DEPTH_MAX = 50
/** Nested repeats multiply; this is where the sample is given up. */
const PIECES_MAX = 20_000

/** A string of at least `length_min` characters where the pattern allows it, or null when it is not understood. */
export function samplePattern(
  pattern: string,
  length_min: number,
  random: SeededRandom,
  budget: GenerationBudget,
): string | null {
  budget.steps(pattern.length)
  try {
    return writePattern(readPattern(pattern, budget), length_min, random, budget)
  } catch (error) {
    if (error instanceof NotUnderstood) return null
    throw error
  }
}

class NotUnderstood extends Error {}

const CHARACTER = /\\(?:u([\da-fA-F]{4})|x([\da-fA-F]{2})|([\s\S]))|[^\\]/y
const GROUP = /\((?:\?(?::|<(?![=!])[^>]*>))?/y
const QUANTIFIER = /(?:([*+?])|\{(\d+)(,(\d*))?\})\??/y

function readPattern(pattern: string, budget: GenerationBudget): Repeat[][] {
  let at = 0
  let depth = 0
  const take = (wanted: RegExp): RegExpExecArray | null => {
    wanted.lastIndex = at
    const found = wanted.exec(pattern)
    at += found?.[0].length ?? 0
    return found
  }

  const character = (): string => {
    const found = take(CHARACTER)
    if (found === null) throw new NotUnderstood()
    const [all, long, short, escaped] = found
    const code = long ?? short
    if (code !== undefined) return String.fromCharCode(Number.parseInt(code, 16))
    if (escaped === undefined) return all
    const known = ESCAPES[escaped]
    if (known === undefined && /[a-zA-Z1-9]/.test(escaped)) throw new NotUnderstood()
    return known ?? escaped
  }

  const charClass = (): string => {
    const negated = take(/\^/y)
    let chars = ''
    while (!take(/\]/y)) {
      const from = character()
      budget.steps(from.length)
      if (from.length === 1 && take(/-(?!\])/y)) {
        const to = character()
        if (to.length !== 1) throw new NotUnderstood()
        for (let code = from.charCodeAt(0); code <= to.charCodeAt(0) && chars.length < 512; code++) {
          chars += String.fromCharCode(code)
        }
      } else chars += from
    }
    const kept = negated ? without(PRINTABLE, chars) : chars
    if (kept === '') throw new NotUnderstood()
    return kept
  }

  const part = (): Part => {
    if (take(GROUP)) {
      const options = alternatives()
      if (!take(/\)/y)) throw new NotUnderstood()
      return { kind: 'group', options }
    }
    if (take(/\[/y)) return { kind: 'chars', chars: charClass() }
    if (take(/\./y)) return { kind: 'chars', chars: without(PRINTABLE, ' ') }
    if (take(/[*+?{]/y)) throw new NotUnderstood()
    return { kind: 'chars', chars: character() }
  }

  const quantifier = (): { min: number; max: number } => {
    const found = take(QUANTIFIER)
    if (found === null) return { min: 1, max: 1 }
    const [, sign, least, more, most] = found
    if (sign !== undefined) return { min: sign === '+' ? 1 : 0, max: sign === '?' ? 1 : REPEAT_MAX }
    const min = Number(least)
    const max = more === undefined ? min : most === '' ? REPEAT_MAX : Number(most)
    if (min > REPEAT_MAX || max < min) throw new NotUnderstood()
    return { min, max }
  }

  const sequence = (): Repeat[] => {
    const parts: Repeat[] = []
    while (at < pattern.length && !'|)'.includes(pattern[at]!))
      if (!take(/[$^]/y)) parts.push({ part: part(), ...quantifier() })
    return parts
  }

  const alternatives = (): Repeat[][] => {
    if (++depth > DEPTH_MAX) throw new NotUnderstood()
    const options = [sequence()]
    while (take(/\|/y)) options.push(sequence())
    depth -= 1
    return options
  }

  const options = alternatives()
  if (at < pattern.length) throw new NotUnderstood()
  return options
}

/** Repeats no more than must be, except where `length_min` asks for more. */
function writePattern(
  options: Repeat[][],
  length_min: number,
  random: SeededRandom,
  budget: GenerationBudget,
): string {
  let left = PIECES_MAX
  const writePart = (part: Part): string => {
    if (--left < 0) throw new NotUnderstood()
    budget.steps(1)
    if (part.kind === 'group') return write(part.options, 0)
    return part.chars[random.next() % part.chars.length] ?? ''
  }
  const write = (options: Repeat[][], length_min: number): string => {
    const sequence = options[random.next() % options.length] ?? []
    budget.steps(sequence.length)
    const pieces = sequence.map(({ part, min }) => {
      let piece = ''
      for (let i = 0; i < min; i++) piece += writePart(part)
      return piece
    })
    let length = pieces.reduce((total, piece) => total + piece.length, 0)
    for (const [i, { part, min, max }] of sequence.entries()) {
      for (let count = min; count < max && length < length_min; count++) {
        const more = writePart(part)
        if (more === '') break
        pieces[i] += more
        length += more.length
      }
    }
    return pieces.join('')
  }
  return write(options, length_min)
}

function without(chars: string, unwanted: string): string {
  const gone = new Set(unwanted)
  return [...chars].filter((char) => !gone.has(char)).join('')
}
