// Generates a string that a regular expression matches. The pattern is read, never run, so one
// written to backtrack forever does no harm here. Understood are literals, classes, groups, alternatives,
// quantifiers and anchors; anything else (lookaround, back-references, \p) gives null.
import type { GenerationBudget } from './generation-budget.ts'
import type { SeededRandom } from './seeded-random.ts'

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
const CLASSES: Readonly<Record<string, string>> = {
  d: DIGITS,
  w: WORD,
  s: ' ',
  D: without(PRINTABLE, DIGITS),
  W: without(PRINTABLE, WORD),
  S: without(PRINTABLE, ' '),
}
const CONTROL: Readonly<Record<string, string>> = { n: '\n', t: '\t', r: '\r', f: '\f', v: '\v', 0: '\0' }
const REPEAT_MAX = 10_000
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
    const reader = new PatternReader(pattern, budget)
    const options = reader.alternatives()
    if (!reader.atEnd) return null
    return new PatternWriter(random, budget).write(options, length_min)
  } catch (error) {
    if (error instanceof NotUnderstood) return null
    throw error
  }
}

class NotUnderstood extends Error {}

class PatternReader {
  readonly #pattern: string
  readonly #budget: GenerationBudget
  #at = 0
  #depth = 0

  constructor(pattern: string, budget: GenerationBudget) {
    this.#pattern = pattern
    this.#budget = budget
  }

  get atEnd(): boolean {
    return this.#at >= this.#pattern.length
  }

  alternatives(): Repeat[][] {
    if (++this.#depth > 50) throw new NotUnderstood()
    const options = [this.#sequence()]
    while (this.#take('|')) options.push(this.#sequence())
    this.#depth -= 1
    return options
  }

  #sequence(): Repeat[] {
    const parts: Repeat[] = []
    while (!this.atEnd && this.#peek() !== '|' && this.#peek() !== ')') {
      if (this.#take('^') || this.#take('$')) continue
      const part = this.#part()
      parts.push({ part, ...this.#quantifier() })
    }
    return parts
  }

  #part(): Part {
    if (this.#take('(')) {
      if (this.#take('?')) this.#groupKind()
      const options = this.alternatives()
      if (!this.#take(')')) throw new NotUnderstood()
      return { kind: 'group', options }
    }
    if (this.#take('[')) return { kind: 'chars', chars: this.#charClass() }
    if (this.#take('.')) return { kind: 'chars', chars: without(PRINTABLE, ' ') }
    if (this.#take('\\')) return { kind: 'chars', chars: this.#escape() }
    const char = this.#next()
    if ('*+?{'.includes(char)) throw new NotUnderstood()
    return { kind: 'chars', chars: char }
  }

  #groupKind(): void {
    if (this.#take(':')) return
    if (!this.#take('<') || this.#peek() === '=' || this.#peek() === '!') throw new NotUnderstood()
    while (!this.#take('>')) this.#next()
  }

  #charClass(): string {
    const negated = this.#take('^')
    let chars = ''
    while (!this.#take(']')) {
      const from = this.#classChar()
      this.#budget.steps(from.length)
      if (from.length === 1 && this.#peek() === '-' && this.#pattern[this.#at + 1] !== ']') {
        this.#next()
        const to = this.#classChar()
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

  #classChar(): string {
    return this.#take('\\') ? this.#escape() : this.#next()
  }

  #escape(): string {
    const char = this.#next()
    const known = CLASSES[char] ?? CONTROL[char]
    if (known !== undefined) return known
    if (char === 'u' || char === 'x') {
      const digits = this.#pattern.slice(this.#at, this.#at + (char === 'u' ? 4 : 2))
      if (!/^[0-9a-f]+$/i.test(digits)) throw new NotUnderstood()
      this.#at += digits.length
      return String.fromCharCode(Number.parseInt(digits, 16))
    }
    if (/[a-zA-Z1-9]/.test(char)) throw new NotUnderstood()
    return char
  }

  #quantifier(): { min: number; max: number } {
    let range = { min: 1, max: 1 }
    if (this.#take('*')) range = { min: 0, max: REPEAT_MAX }
    else if (this.#take('+')) range = { min: 1, max: REPEAT_MAX }
    else if (this.#take('?')) range = { min: 0, max: 1 }
    else if (this.#peek() === '{') range = this.#counted()
    this.#take('?')
    return range
  }

  #counted(): { min: number; max: number } {
    const match = /^\{(\d+)(,(\d*))?\}/.exec(this.#pattern.slice(this.#at, this.#at + 20))
    if (match === null) throw new NotUnderstood()
    this.#at += match[0].length
    const min = Number(match[1])
    const max = match[2] === undefined ? min : match[3] === '' ? REPEAT_MAX : Number(match[3])
    if (min > REPEAT_MAX || max < min) throw new NotUnderstood()
    return { min, max }
  }

  #peek(): string | undefined {
    return this.#pattern[this.#at]
  }

  #next(): string {
    const char = this.#pattern[this.#at]
    if (char === undefined) throw new NotUnderstood()
    this.#at += 1
    return char
  }

  #take(char: string): boolean {
    if (this.#peek() !== char) return false
    this.#at += 1
    return true
  }
}

/** Repeats no more than must be, except where `length_min` asks for more. */
class PatternWriter {
  readonly #random: SeededRandom
  readonly #budget: GenerationBudget
  #left = PIECES_MAX

  constructor(random: SeededRandom, budget: GenerationBudget) {
    this.#random = random
    this.#budget = budget
  }

  write(options: Repeat[][], length_min: number): string {
    const sequence = options[this.#random.next() % options.length] ?? []
    this.#budget.steps(sequence.length)
    const pieces = sequence.map(({ part, min }) => {
      let piece = ''
      for (let i = 0; i < min; i++) piece += this.#part(part)
      return piece
    })
    let length = pieces.reduce((total, piece) => total + piece.length, 0)
    for (const [i, { part, min, max }] of sequence.entries()) {
      for (let count = min; count < max && length < length_min; count++) {
        const more = this.#part(part)
        if (more === '') break
        pieces[i] += more
        length += more.length
      }
    }
    return pieces.join('')
  }

  #part(part: Part): string {
    if (--this.#left < 0) throw new NotUnderstood()
    this.#budget.steps(1)
    if (part.kind === 'group') return this.write(part.options, 0)
    return part.chars[this.#random.next() % part.chars.length] ?? ''
  }
}

function without(chars: string, unwanted: string): string {
  const gone = new Set(unwanted)
  return [...chars].filter((char) => !gone.has(char)).join('')
}
