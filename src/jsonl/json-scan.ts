// A strict JSON scanner (RFC 8259, exactly what JSON.parse accepts) that reads a range of bytes once and creates no
// objects. The caller steps through the objects and arrays that it needs and skips the rest:
//
//   for (let more = json.beginObject(); more; more = json.nextMember()) {
//     if (json.key(KEYS) === 'model' && json.kind() === 'string') json.readString()
//     else json.skipValue()
//   }
//   json.finish()
//   if (json.fault !== null) …
//
// A fault moves the scanner to the end, so every loop ends by itself and one look at `fault` afterwards is
// enough. UTF-8 is not checked here: one native call over a whole block does that far faster.

/** A run of bytes: `start` inclusive, `end` exclusive, both indexes into the buffer that was scanned. */
export interface Span {
  start: number
  end: number
}

export function setSpan(span: Span, start: number, end: number): void {
  span.start = start
  span.end = end
}

interface Word<T> {
  name: T
  bytes: Uint8Array
  /** The word's bit in a bit set of its `Names`. */
  bit: number
}

/** Bytes of the longest character that folds to an ASCII letter: the Kelvin sign. */
const FOLDED_BYTES_MAX = 3

/** A closed set of short words (keys, roles, methods) that are recognised in bytes without decoding them. */
export class Names<T extends string> {
  /** The words by their length; index 0 stays empty. */
  #by_length: Word<T>[][] = [[]]

  /** Makes a set of at most 32 words, in lower case. */
  constructor(...names: readonly T[]) {
    for (const [i, name] of names.entries()) {
      const bytes = new TextEncoder().encode(name)
      while (this.#by_length.length <= bytes.length) this.#by_length.push([])
      this.#by_length[bytes.length]?.push({ name, bytes, bit: 1 << i })
    }
  }

  /** The word that `bytes[start, end)` spells, or null. */
  find(bytes: Buffer, start: number, end: number): Word<T> | null {
    const length = end - start
    const words = this.#by_length[length < this.#by_length.length ? length : 0]!
    for (let k = 0; k < words.length; k++) {
      const word = words[k]!
      const spelt = word.bytes
      let i = 0
      while (i < length && spelt[i] === bytes[start + i]) i++
      if (i === length) return word
    }
    return null
  }

  /** The word that decoded text spells, or null. */
  findText(text: string): Word<T> | null {
    for (const word of this.#by_length[text.length] ?? []) if (word.name === text) return word
    return null
  }

  /** The word that `bytes[start, end)`, which match none exactly, spell if case is disregarded; or null. */
  findFolded(bytes: Buffer, start: number, end: number): Word<T> | null {
    const length = end - start
    if (length >= this.#by_length.length * FOLDED_BYTES_MAX) return null
    for (let i = start; i < end; i++) {
      if (bytes[i]! >= 0x80) return this.findFoldedText(bytes.toString('utf8', start, end))
    }
    const words = this.#by_length[length < this.#by_length.length ? length : 0]!
    for (let k = 0; k < words.length; k++) {
      const spelt = words[k]!.bytes
      let i = 0
      while (i < length && spelt[i] === lower(bytes[start + i]!)) i++
      if (i === length) return words[k]!
    }
    return null
  }

  /** The word that decoded text spells after Unicode case folding (\u017f is an s, \u212a a k), or null. */
  findFoldedText(text: string): Word<T> | null {
    if (text.length >= this.#by_length.length) return null
    return this.findText(text.toUpperCase().toLowerCase())
  }
}

function lower(byte: number): number {
  return byte >= 0x41 && byte <= 0x5a ? byte | 0x20 : byte
}

/** The limit of nesting; the outermost object is level 1. */
export const DEPTH_MAX = 100

export type JsonKind = 'object' | 'array' | 'string' | 'number' | 'true' | 'false' | 'null'

export interface JsonFault {
  code: 'invalid_json' | 'nesting_too_deep'
  /** Index into the scanned buffer. */
  at: number
  what: string
}

/** A key that JSON readers take differently: it is given twice, or equals a known name but for case. */
export interface AmbiguousKey {
  /** The key as written, escapes resolved, clipped. */
  key: string
  /** The known name that the key is taken for. */
  name: string
  why: 'case' | 'twice'
}

/** Characters of an ambiguous key that are shown. */
const KEY_SHOWN_MAX = 64

const QUOTE = 0x22
const COMMA = 0x2c
const COLON = 0x3a
const OPEN_BRACKET = 0x5b
const BACKSLASH = 0x5c
const CLOSE_BRACKET = 0x5d
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d

/** Bytes at which the inside of a string needs a look: the quote, the backslash, control characters. */
const STOPS = new Uint8Array(256)
STOPS.fill(1, 0, 0x20)
STOPS[QUOTE] = 1
STOPS[BACKSLASH] = 1

/** The bytes that may follow a backslash; `u` is handled apart. */
const ESCAPES = new Uint8Array(256)
for (const c of Buffer.from('"\\/bfnrt')) ESCAPES[c] = 1

const NUMBER_STARTS = new Uint8Array(256)
for (const c of Buffer.from('-0123456789')) NUMBER_STARTS[c] = 1

const HEX = new Uint8Array(256)
for (const c of Buffer.from('0123456789abcdefABCDEF')) HEX[c] = 1

const KINDS: (JsonKind | null)[] = new Array(256).fill(null)
KINDS[OPEN_BRACE] = 'object'
KINDS[OPEN_BRACKET] = 'array'
KINDS[QUOTE] = 'string'
KINDS[0x74] = 'true'
KINDS[0x66] = 'false'
KINDS[0x6e] = 'null'
for (const c of Buffer.from('-0123456789')) KINDS[c] = 'number'

const TYPE_KEY = new Names('type')

export class JsonScanner {
  fault: JsonFault | null = null
  /** The current index: at a value whenever a member or element was announced, else just after one. */
  at = 0
  /** The span of the last key, without its quotes, and whether it holds escapes. */
  key_start = 0
  key_end = 0
  key_escaped = false
  /** The span of the last `readString`, without its quotes, and whether it holds escapes. */
  text_start = 0
  text_end = 0
  text_escaped = false
  /** The first key that `key` found ambiguous since `clearAmbiguous`. */
  ambiguous: AmbiguousKey | null = null

  /** The buffer given to `open`. */
  bytes: Buffer = Buffer.alloc(0)

  #end = 0
  #depth = 0
  /** Bit sets, by depth of an object, of the known names among its keys so far. */
  readonly #seen = new Int32Array(DEPTH_MAX + 1)
  #escaped = false
  /** The buffer's memory as 32-bit words; word `w` holds the bytes from `4 * w - #shift`. */
  #words: Int32Array = new Int32Array(0)
  #shift = 0

  /** Starts on `bytes[start, end)`, at its first character that is no whitespace. */
  open(bytes: Buffer, start: number, end: number): void {
    if (bytes.buffer !== this.#words.buffer) {
      this.#words = new Int32Array(bytes.buffer, 0, bytes.buffer.byteLength >> 2)
    }
    this.bytes = bytes
    this.#shift = bytes.byteOffset
    this.#end = end
    this.#depth = 0
    this.fault = null
    this.ambiguous = null
    this.at = this.#space(start)
  }

  /** The kind of the value ahead, judged by its first character; null where no value can begin. */
  kind(): JsonKind | null {
    return this.at < this.#end ? KINDS[this.bytes[this.at]!]! : null
  }

  /** Steps into the object ahead: true at the value of its first member, false after `{}` or after any other value. */
  beginObject(): boolean {
    if (!this.#enter(OPEN_BRACE)) return false
    const i = this.#space(this.at + 1)
    if (i < this.#end && this.bytes[i] === CLOSE_BRACE) return this.#leave(i)
    return this.#member(i)
  }

  /** Moves on after a value: true at the value of the next member, false after the closing brace. */
  nextMember(): boolean {
    const i = this.#space(this.at)
    if (i < this.#end) {
      const c = this.bytes[i]
      if (c === COMMA) return this.#member(this.#space(i + 1))
      if (c === CLOSE_BRACE) return this.#leave(i)
    }
    return this.#fail(i, 'expected "," or "}"')
  }

  /** Steps into the array ahead: true at its first element, false after `[]` or after any other value. */
  beginArray(): boolean {
    if (!this.#enter(OPEN_BRACKET)) return false
    const i = this.#space(this.at + 1)
    if (i < this.#end && this.bytes[i] === CLOSE_BRACKET) return this.#leave(i)
    this.at = i
    return true
  }

  /** Moves on after an element: true at the next one, false after the closing bracket. */
  nextElement(): boolean {
    const i = this.#space(this.at)
    if (i < this.#end) {
      const c = this.bytes[i]
      if (c === COMMA) {
        this.at = this.#space(i + 1)
        return true
      }
      if (c === CLOSE_BRACKET) return this.#leave(i)
    }
    return this.#fail(i, 'expected "," or "]"')
  }

  /** The one of `names` that the last key equals, escapes resolved; null if none. Called once per member. */
  key<T extends string>(names: Names<T>): T | null {
    const { key_start, key_end } = this
    const text = this.key_escaped ? this.decode(key_start, key_end, true) : null
    const word = text === null ? names.find(this.bytes, key_start, key_end) : names.findText(text)
    if (word !== null) {
      if ((this.#seen[this.#depth]! & word.bit) !== 0) this.#noteAmbiguous(word.name, 'twice')
      this.#seen[this.#depth]! |= word.bit
      return word.name
    }
    const folded =
      text === null ? names.findFolded(this.bytes, key_start, key_end) : names.findFoldedText(text)
    if (folded !== null) this.#noteAmbiguous(folded.name, 'case')
    return null
  }

  clearAmbiguous(): void {
    this.ambiguous = null
  }

  /** Steps over the value ahead, whatever it is, checking every byte of it. */
  skipValue(): void {
    const i = this.#value(this.at, this.#depth)
    if (i >= 0) this.at = i
  }

  /** Steps over the value ahead; true if it is a string, whose span goes to `text_…`; false if not, or on a fault. */
  readString(): boolean {
    const isString = this.kind() === 'string'
    this.#escaped = false
    const i = isString ? this.#string(this.at + 1) : this.#value(this.at, this.#depth)
    if (i < 0) return false
    if (!isString) {
      this.at = i
      return false
    }
    this.text_start = this.at + 1
    this.text_end = i - 1
    this.text_escaped = this.#escaped
    this.at = i
    return true
  }

  /** The one of `names` that the last string equals, escapes resolved; null if none. */
  text<T extends string>(names: Names<T>): T | null {
    const { text_start, text_end } = this
    const word = this.text_escaped
      ? names.findText(this.decode(text_start, text_end, true))
      : names.find(this.bytes, text_start, text_end)
    return word === null ? null : word.name
  }

  /** Steps over the value ahead; the one of `names` that it is, escapes resolved; null if none, or no string. */
  readWord<T extends string>(names: Names<T>): T | null {
    return this.readString() ? this.text(names) : null
  }

  /** Steps over the value ahead; its text, or null if it is no string. */
  readText(): string | null {
    return this.readString() ? this.decode(this.text_start, this.text_end, this.text_escaped) : null
  }

  /** Steps over the value ahead; whether it is an object whose `type` is one of `types`. */
  readTyped(types: Names<string>): boolean {
    let isOne = false
    for (let more = this.beginObject(); more; more = this.nextMember()) {
      if (this.key(TYPE_KEY) === null) this.skipValue()
      else isOne = this.readWord(types) !== null
    }
    return isOne
  }

  /** Steps over the number ahead and returns it; NaN on a fault. */
  readNumber(): number {
    const start = this.at
    const i = this.#number(start)
    if (i < 0) return Number.NaN
    this.at = i
    return this.#plainNumber(start, i) ?? Number(this.bytes.toString('latin1', start, i))
  }

  /** The exact value of a short number without sign or exponent, a quotient of exact doubles; null for others. */
  #plainNumber(start: number, end: number): number | null {
    if (end - start > 15) return null
    const bytes = this.bytes
    let digits = 0
    let scale = 1
    let fraction = false
    for (let i = start; i < end; i++) {
      const c = bytes[i]!
      if (c >= 0x30 && c <= 0x39) {
        digits = digits * 10 + (c - 0x30)
        if (fraction) scale *= 10
      } else if (c === 0x2e) fraction = true
      else return null
    }
    return digits / scale
  }

  /** Decodes the string in `[start, end)` between two quotes. */
  decode(start: number, end: number, escaped: boolean): string {
    if (!escaped) return this.bytes.toString('utf8', start, end)
    const text: unknown = JSON.parse(this.bytes.toString('utf8', start - 1, end + 1))
    if (typeof text !== 'string') throw new TypeError('no string lies here')
    return text
  }

  /** Whether the string at `[start, end)` has more than `max` characters (code points). */
  longerThan(max: number, start: number, end: number, escaped: boolean): boolean {
    // A character takes at least one byte.
    if (end - start <= max) return false
    let characters = 0
    for (const _ of this.decode(start, end, escaped)) if (++characters > max) return true
    return false
  }

  /** Ends the scan after the outermost value: a fault unless only whitespace is left. */
  finish(): void {
    const i = this.#space(this.at)
    if (i < this.#end) this.#fail(i, 'something follows the end of the value')
  }

  #fail(at: number, what: string): false {
    this.fault ??= { code: 'invalid_json', at, what: at >= this.#end ? `the line ends here: ${what}` : what }
    this.at = this.#end
    return false
  }

  #failAt(at: number, what: string): -1 {
    this.#fail(at, what)
    return -1
  }

  #tooDeep(at: number): -1 {
    this.fault ??= { code: 'nesting_too_deep', at, what: `more than ${DEPTH_MAX} levels of nesting` }
    this.at = this.#end
    return -1
  }

  #noteAmbiguous(name: string, why: AmbiguousKey['why']): void {
    const key = this.decode(this.key_start, this.key_end, this.key_escaped).slice(0, KEY_SHOWN_MAX)
    this.ambiguous ??= { key, name, why }
  }

  #enter(opening: number): boolean {
    if (this.#depth >= DEPTH_MAX || this.at >= this.#end || this.bytes[this.at] !== opening) {
      this.skipValue()
      return false
    }
    this.#depth++
    this.#seen[this.#depth] = 0
    return true
  }

  #leave(at: number): false {
    this.#depth--
    this.at = at + 1
    return false
  }

  #member(from: number): boolean {
    this.#escaped = false
    const i = this.#key(from)
    if (i < 0) return false
    this.key_escaped = this.#escaped
    this.at = i
    return true
  }

  /** Steps over `"key" :` to the value after it, and records the key's span. */
  #key(from: number): number {
    const bytes = this.bytes
    if (from >= this.#end || bytes[from] !== QUOTE)
      return this.#failAt(from, 'expected a key in double quotes')
    let i = this.#string(from + 1)
    if (i < 0) return -1
    this.key_start = from + 1
    this.key_end = i - 1
    i = this.#space(i)
    if (i >= this.#end || bytes[i] !== COLON) return this.#failAt(i, 'expected ":"')
    return this.#space(i + 1)
  }

  #space(from: number): number {
    const bytes = this.bytes
    const end = this.#end
    let i = from
    while (i < end) {
      const c = bytes[i]!
      if (c > 0x20 || (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09)) break
      i++
    }
    return i
  }

  /** The index after the value at `from`, inside `depth` levels; -1 on a fault. The methods below return the same. */
  #value(from: number, depth: number): number {
    if (from >= this.#end) return this.#failAt(from, 'expected a value')
    switch (KINDS[this.bytes[from]!]) {
      case 'string':
        return this.#string(from + 1)
      case 'object':
        return this.#object(from, depth + 1)
      case 'array':
        return this.#array(from, depth + 1)
      case 'number':
        return this.#number(from)
      case 'true':
        return this.#literal(from, 'true')
      case 'false':
        return this.#literal(from, 'false')
      case 'null':
        return this.#literal(from, 'null')
      default:
        return this.#failAt(from, 'expected a value')
    }
  }

  #object(from: number, depth: number): number {
    if (depth > DEPTH_MAX) return this.#tooDeep(from)
    const bytes = this.bytes
    const end = this.#end
    let i = this.#space(from + 1)
    if (i < end && bytes[i] === CLOSE_BRACE) return i + 1
    for (;;) {
      i = this.#key(i)
      if (i < 0) return -1
      i = this.#value(i, depth)
      if (i < 0) return -1
      i = this.#space(i)
      const c = i < end ? bytes[i] : 0
      if (c === CLOSE_BRACE) return i + 1
      if (c !== COMMA) return this.#failAt(i, 'expected "," or "}"')
      i = this.#space(i + 1)
    }
  }

  #array(from: number, depth: number): number {
    if (depth > DEPTH_MAX) return this.#tooDeep(from)
    const bytes = this.bytes
    const end = this.#end
    let i = this.#space(from + 1)
    if (i < end && bytes[i] === CLOSE_BRACKET) return i + 1
    for (;;) {
      // Arrays of numbers (embeddings) take a shorter path.
      i = i < end && NUMBER_STARTS[bytes[i]!] === 1 ? this.#number(i) : this.#value(i, depth)
      if (i < 0) return -1
      if (i < end && bytes[i]! <= 0x20) i = this.#space(i)
      const c = i < end ? bytes[i] : 0
      if (c === CLOSE_BRACKET) return i + 1
      if (c !== COMMA) return this.#failAt(i, 'expected "," or "]"')
      i++
      if (i < end && bytes[i]! <= 0x20) i = this.#space(i)
    }
  }

  /**
   * Steps from after an opening quote to after the closing one. Most bytes of an input file pass through here, so it
   * looks at four at a time: the expression in the loop is nonzero just if one of them is a stop (a byte below 0x20, or
   * zero after XOR with the quote or the backslash; "Bit Twiddling Hacks", hasless).
   */
  #string(from: number): number {
    const bytes = this.bytes
    const words = this.#words
    const shift = this.#shift
    const end = this.#end
    const wordsEnd = (end + shift) >> 2
    let i = from
    for (;;) {
      while (i < end && ((i + shift) & 3) !== 0 && STOPS[bytes[i]!] === 0) i++
      if (((i + shift) & 3) === 0) {
        let w = (i + shift) >> 2
        while (w < wordsEnd) {
          const x = words[w]!
          const below = (x - 0x20202020) | ((x ^ 0x22222222) - 0x01010101) | ((x ^ 0x5c5c5c5c) - 0x01010101)
          if ((below & ~x & 0x80808080) !== 0) break
          w++
        }
        i = (w << 2) - shift
        while (i < end && STOPS[bytes[i]!] === 0) i++
      }
      if (i >= end) return this.#failAt(i, 'the string is not closed')
      const c = bytes[i]
      if (c === QUOTE) return i + 1
      if (c !== BACKSLASH) return this.#failAt(i, 'a control character in a string must be escaped')
      this.#escaped = true
      i = this.#escape(i + 1)
      if (i < 0) return -1
    }
  }

  /** Steps from after a backslash to after the escape. */
  #escape(from: number): number {
    const bytes = this.bytes
    if (from >= this.#end) return this.#failAt(from, 'the string is not closed')
    const c = bytes[from]!
    if (ESCAPES[c] === 1) return from + 1
    if (c !== 0x75) return this.#failAt(from, 'this character cannot follow a backslash')
    for (let i = from + 1; i <= from + 4; i++) {
      if (i >= this.#end || HEX[bytes[i]!] === 0)
        return this.#failAt(i, 'expected four hex digits after "\\u"')
    }
    return from + 5
  }

  #number(from: number): number {
    const bytes = this.bytes
    const end = this.#end
    let i = bytes[from] === 0x2d ? from + 1 : from
    if (i < end && bytes[i] === 0x30) i++
    else i = this.#digits(i)
    if (i < 0) return -1
    if (i < end && bytes[i] === 0x2e) i = this.#digits(i + 1)
    if (i < 0) return -1
    if (i < end && (bytes[i]! | 0x20) === 0x65) {
      i++
      if (i < end && (bytes[i] === 0x2b || bytes[i] === 0x2d)) i++
      i = this.#digits(i)
    }
    return i
  }

  /** Steps over at least one digit. */
  #digits(from: number): number {
    const bytes = this.bytes
    const end = this.#end
    let i = from
    while (i < end && bytes[i]! >= 0x30 && bytes[i]! <= 0x39) i++
    return i > from ? i : this.#failAt(i, 'expected a digit')
  }

  #literal(from: number, word: string): number {
    const bytes = this.bytes
    for (let k = 1; k < word.length; k++) {
      const i = from + k
      if (i >= this.#end || bytes[i] !== word.charCodeAt(k)) return this.#failAt(i, `expected "${word}"`)
    }
    return from + word.length
  }
}

/** The limit of the remembered text: comparing longer ones costs more than decoding. */
const REMEMBERED_BYTES_MAX = 64

/**
 * Decodes a string, or returns the previous string if the bytes are equal: models and entities repeat from line to
 * line, and comparing a string with itself is fast.
 */
export class RepeatedText {
  #bytes = Buffer.alloc(REMEMBERED_BYTES_MAX)
  #length = -1
  #text = ''

  /** Reads the value ahead as a string; null for another kind of value. */
  read(json: JsonScanner): string | null {
    return json.readString() ? this.readSpan(json, json.text_start, json.text_end, json.text_escaped) : null
  }

  readSpan(json: JsonScanner, start: number, end: number, escaped: boolean): string {
    const length = end - start
    const bytes = json.bytes
    if (length === this.#length && !escaped) {
      let i = 0
      while (i < length && this.#bytes[i] === bytes[start + i]) i++
      if (i === length) return this.#text
    }
    const text = json.decode(start, end, escaped)
    if (!escaped && length <= REMEMBERED_BYTES_MAX) {
      bytes.copy(this.#bytes, 0, start, end)
      this.#length = length
      this.#text = text
    }
    return text
  }
}
