// JSON as people read and write it: parsed and printed with all digits of its numbers, so that 9007199254740993 and 1.0
// stay as they are; the position at which a text stops being JSON; and answers checked by the schema of their request.
import { isRecord } from '../domain/json-record.ts'

declare global {
  interface JSON {
    parse(
      text: string,
      reviver: (key: string, value: unknown, context: { source?: string }) => unknown,
    ): unknown
    /** The browser's JSON.rawJSON; without it, numbers are shown as parsed. */
    rawJSON?: (text: string) => unknown
  }
}

/** Parses JSON, keeping all digits of numbers; null where the text is no JSON. */
export function parseExact(text: string): unknown {
  try {
    return JSON.parse(text, (_key, value, { source }) =>
      typeof value === 'number' && source !== undefined && JSON.rawJSON ? JSON.rawJSON(source) : value,
    )
  } catch {
    return null
  }
}

export const print = (value: unknown): string => JSON.stringify(value, null, 2) ?? ''

// The position at which a text stops being JSON, which some browsers do not report.

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

  /** Reads a value; returns false at the first invalid character. */
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

// Answers are checked by the JSON schema of their request, with the keywords that structured output uses. Other keywords,
// such as $ref, are not checked.

/** The violations of a schema, each with its place; empty if there are none. */
export function schemaProblems(schema: unknown, value: unknown, path = '$'): string[] {
  if (!isRecord(schema)) return []
  const problems: string[] = []
  const expect = (holds: boolean, what: string): void => {
    if (!holds) problems.push(`${path}: ${what}`)
  }
  const types = [schema.type].flat().filter((type) => typeof type === 'string')
  if (types.length > 0 && !types.some((type) => isOfType(type, value)))
    return [`${path}: not of type ${types.join(' or ')}`]
  const same = (other: unknown): boolean => JSON.stringify(other) === JSON.stringify(value)
  if (Array.isArray(schema.enum)) expect(schema.enum.some(same), `not one of ${JSON.stringify(schema.enum)}`)
  if ('const' in schema) expect(same(schema.const), `not ${JSON.stringify(schema.const)}`)
  if (typeof value === 'number') {
    if (typeof schema.minimum === 'number') expect(value >= schema.minimum, `below ${schema.minimum}`)
    if (typeof schema.maximum === 'number') expect(value <= schema.maximum, `above ${schema.maximum}`)
  }
  if (typeof value === 'string') {
    if (typeof schema.minLength === 'number')
      expect([...value].length >= schema.minLength, `shorter than ${schema.minLength}`)
    if (typeof schema.maxLength === 'number')
      expect([...value].length <= schema.maxLength, `longer than ${schema.maxLength}`)
  }
  if (Array.isArray(value)) {
    if (typeof schema.minItems === 'number')
      expect(value.length >= schema.minItems, `fewer than ${schema.minItems} items`)
    if (typeof schema.maxItems === 'number')
      expect(value.length <= schema.maxItems, `more than ${schema.maxItems} items`)
    for (const [i, item] of value.entries())
      problems.push(...schemaProblems(schema.items, item, `${path}[${i}]`))
  }
  if (isRecord(value)) {
    const known = isRecord(schema.properties) ? schema.properties : {}
    for (const name of Array.isArray(schema.required) ? schema.required : [])
      expect(Object.hasOwn(value, String(name)), `"${name}" is missing`)
    for (const [name, item] of Object.entries(value)) {
      if (Object.hasOwn(known, name)) problems.push(...schemaProblems(known[name], item, `${path}.${name}`))
      else expect(schema.additionalProperties !== false, `"${name}" is not in the schema`)
    }
  }
  return problems
}

function isOfType(type: string, value: unknown): boolean {
  if (type === 'null') return value === null
  if (type === 'array') return Array.isArray(value)
  if (type === 'object') return isRecord(value)
  if (type === 'integer') return Number.isInteger(value)
  return typeof value === type
}
