// Finds the position at which a text stops being JSON, which some browsers do not report.

const SPACE = /[ \t\r\n]*/y
const STRING = /"(?:[^"\\\p{Cc}]|\\(?:["\\/bfnrt]|u[0-9a-f]{4}))*"/iuy
const SCALAR = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[+-]?\d+)?|true|false|null/iy

/** The index of the first invalid character; null if the text is JSON. */
export function brokenAt(text: string): number | null {
  try {
    JSON.parse(text)
    return null
  } catch {
    const reader = new Reader(text)
    reader.value()
    return reader.at
  }
}

class Reader {
  at = 0
  readonly #text: string

  constructor(text: string) {
    this.#text = text
  }

  /** False where it stopped. */
  value(): boolean {
    this.#take(SPACE)
    const first = this.#text[this.at]
    const whole =
      first === '{'
        ? this.#items('}', true)
        : first === '['
          ? this.#items(']', false)
          : this.#take(first === '"' ? STRING : SCALAR)
    if (whole) this.#take(SPACE)
    return whole
  }

  #items(end: string, named: boolean): boolean {
    this.at++
    this.#take(SPACE)
    if (this.#is(end)) return true
    for (;;) {
      if (named) {
        this.#take(SPACE)
        if (!this.#take(STRING)) return false
        this.#take(SPACE)
        if (!this.#is(':')) return false
      }
      if (!this.value()) return false
      if (this.#is(end)) return true
      if (!this.#is(',')) return false
    }
  }

  #is(character: string): boolean {
    if (this.#text[this.at] !== character) return false
    this.at++
    return true
  }

  #take(pattern: RegExp): boolean {
    pattern.lastIndex = this.at
    if (!pattern.test(this.#text)) return false
    this.at = pattern.lastIndex
    return true
  }
}
