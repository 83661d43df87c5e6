// Scans the `metadata` of a line, a few short strings. The entity is read at once; other keys are read on demand.
import { trimmedEntity } from '../domain/entity.ts'
import { unstorable } from '../domain/text.ts'
import { type JsonScanner, Names, RepeatedText, type Span, setSpan } from './json-scan.ts'

export const METADATA_PAIRS_MAX = 16
export const METADATA_KEY_CHARACTERS_MAX = 64
export const METADATA_VALUE_CHARACTERS_MAX = 512

const KEYS = new Names('entity')

export class MetadataScan {
  /** False where `metadata` is absent or `null`. */
  present = false
  readonly span: Span = { start: 0, end: 0 }
  /** Why it cannot be accepted, or null. */
  problem: string | null = null
  /** Which text in it cannot be stored, or null. */
  text_problem: string | null = null

  #entity: Span = { start: 0, end: 0 }
  #entity_escaped = false
  #has_entity = false
  #entities = new RepeatedText()

  reset(): void {
    this.present = false
    this.problem = null
    this.text_problem = null
    setSpan(this.span, 0, 0)
    setSpan(this.#entity, 0, 0)
    this.#has_entity = false
  }

  /** Reads the value that `json` stands at. */
  scan(json: JsonScanner): void {
    this.reset()
    const kind = json.kind()
    if (kind === 'object') this.#scanPairs(json)
    else {
      json.skipValue()
      if (kind !== 'null') this.problem = '`metadata` is not an object.'
    }
  }

  /** `metadata.entity`; null where it is absent or blank. */
  entity(json: JsonScanner): string | null {
    const { start, end } = this.#entity
    if (start === end) return null
    return trimmedEntity(this.#entities.readSpan(json, start, end, this.#entity_escaped))
  }

  /** Whether `metadata.entity` is there and says nothing. */
  isBlankEntity(json: JsonScanner): boolean {
    return this.#has_entity && this.entity(json) === null
  }

  /** The pairs of a line without a problem; null where there are none to read. */
  parse(json: JsonScanner): Record<string, string> | null {
    if (!this.present) return null
    const pairs = this.#parsed(json)
    if (!isStrings(pairs)) throw new TypeError('a value of metadata is no string')
    return pairs
  }

  #parsed(json: JsonScanner): object {
    const value: unknown = JSON.parse(json.bytes.toString('utf8', this.span.start, this.span.end))
    if (typeof value !== 'object' || value === null) throw new TypeError('metadata is no object')
    return value
  }

  #scanPairs(json: JsonScanner): void {
    this.present = true
    const start = json.at
    let pairs = 0
    let suspect = false
    let escaped = false
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      pairs++
      suspect ||= json.longerThan(METADATA_KEY_CHARACTERS_MAX, json.key_start, json.key_end, json.key_escaped)
      escaped ||= json.key_escaped
      const isEntity = json.key(KEYS) !== null
      if (json.readString()) {
        const { text_start, text_end, text_escaped } = json
        escaped ||= text_escaped
        suspect ||= json.longerThan(METADATA_VALUE_CHARACTERS_MAX, text_start, text_end, text_escaped)
        if (isEntity) {
          setSpan(this.#entity, text_start, text_end)
          this.#entity_escaped = text_escaped
          this.#has_entity = true
        }
      } else suspect = true
    }
    setSpan(this.span, start, json.at)
    // A repeated key may replace an invalid value, so the parsed object decides.
    if ((suspect || pairs > METADATA_PAIRS_MAX) && json.fault === null) {
      this.problem = problemOf(this.#parsed(json))
    }
    if (escaped && this.problem === null && json.fault === null)
      this.text_problem = textProblemOf(this.#parsed(json))
  }
}

function isStrings(pairs: object): pairs is Record<string, string> {
  return Object.values(pairs).every((value) => typeof value === 'string')
}

function problemOf(pairs: object): string | null {
  const entries: [string, unknown][] = Object.entries(pairs)
  if (entries.length > METADATA_PAIRS_MAX) {
    return `\`metadata\` has ${entries.length} pairs; at most ${METADATA_PAIRS_MAX} are allowed.`
  }
  for (const [key, value] of entries) {
    if (characters(key) > METADATA_KEY_CHARACTERS_MAX) {
      return `A key of \`metadata\` is longer than ${METADATA_KEY_CHARACTERS_MAX} characters.`
    }
    const name = JSON.stringify(key)
    if (typeof value !== 'string') return `The value of ${name} in \`metadata\` is not a string.`
    if (characters(value) > METADATA_VALUE_CHARACTERS_MAX) {
      return `The value of ${name} in \`metadata\` is longer than ${METADATA_VALUE_CHARACTERS_MAX} characters.`
    }
  }
  return null
}

function textProblemOf(pairs: object): string | null {
  for (const [key, value] of Object.entries(pairs)) {
    const name = JSON.stringify(key)
    const of_key = unstorable(key)
    if (of_key !== null) return `The key ${name} of \`metadata\` ${of_key}.`
    const of_value = unstorable(String(value))
    if (of_value !== null) return `The value of ${name} in \`metadata\` ${of_value}.`
  }
  return null
}

/** Code points. */
function characters(text: string): number {
  let count = 0
  for (const _ of text) count++
  return count
}
