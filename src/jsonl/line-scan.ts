// Scans one line of an input file in a single pass over its bytes. The body is never parsed into objects: it is sent
// upstream as the bytes that were uploaded. The scan finds their position and the few facts that checking, pricing and
// grouping need.

import {
  DEFAULT_ENDPOINT,
  ENDPOINT_PATHS,
  type EndpointPath,
  endpointNamed,
  endpointsText,
  isEndpointPath,
} from '../domain/endpoint.ts'
import { trimmedEntity } from '../domain/entity.ts'
import type { ErrorCode } from '../domain/errors.ts'
import { quoted, unstorable } from '../domain/text.ts'
import { type JsonKind, JsonScanner, Names, RepeatedText, type Span, setSpan } from './json-scan.ts'
import { BodyFacts } from './line-scan-body.ts'
import { hasUnseen } from './prompt-bound.ts'

const CUSTOM_ID_CHARACTERS_MAX = 512

export const METADATA_PAIRS_MAX = 16
export const METADATA_KEY_CHARACTERS_MAX = 64
export const METADATA_VALUE_CHARACTERS_MAX = 512

const METADATA_KEYS = new Names('entity')

/**
 * An input line that is well formed. Valid until the scanner's next scan: copy what must last. Of its metadata, a few short
 * strings, the entity is read at once and the rest on demand.
 */
export class InputLine {
  readonly ok = true
  /** The span of `custom_id` as written, without its quotes, and whether it holds escapes. */
  readonly custom_id_span: Span = { start: 0, end: 0 }
  custom_id_escaped = false
  readonly body = new BodyFacts()
  /** The reason to reject the metadata, or null. */
  metadata_problem: string | null = null
  /** The text in the metadata that cannot be stored, or null. */
  metadata_text_problem: string | null = null
  readonly #json: JsonScanner
  /** Empty spans at 0 where the line has no metadata, or no entity. */
  readonly #metadata: Span = { start: 0, end: 0 }
  readonly #entity: Span = { start: 0, end: 0 }
  #entity_escaped = false
  readonly #entities = new RepeatedText()

  constructor(json: JsonScanner) {
    this.#json = json
  }

  /** The buffer that all spans point into. */
  get bytes(): Buffer {
    return this.#json.bytes
  }

  /** The `custom_id`, decoded on demand. */
  get custom_id(): string {
    return this.#json.decode(this.custom_id_span.start, this.custom_id_span.end, this.custom_id_escaped)
  }

  /** `metadata.entity`, trimmed; null where it is absent or blank. */
  get entity(): string | null {
    const { start, end } = this.#entity
    if (start === end) return null
    return trimmedEntity(this.#entities.readSpan(this.#json, start, end, this.#entity_escaped))
  }

  /** Whether `metadata.entity` is blank: a new file with such a line is rejected, older files may have some. */
  get entity_is_blank(): boolean {
    return this.#entity.end > 0 && this.entity === null
  }

  /** The metadata of the line, parsed on demand; null where it is absent or `null`. */
  get metadata(): Record<string, string> | null {
    if (this.#metadata.end === 0) return null
    const pairs = this.#parsedMetadata()
    if (!isStrings(pairs)) throw new TypeError('a value of metadata is no string')
    return pairs
  }

  /** The endpoint that the line names. */
  get url(): EndpointPath {
    return this.body.endpoint.path
  }

  resetMetadata(): void {
    this.metadata_problem = null
    this.metadata_text_problem = null
    setSpan(this.#metadata, 0, 0)
    setSpan(this.#entity, 0, 0)
  }

  /** Reads the metadata, at which the scanner is. */
  scanMetadata(): void {
    this.resetMetadata()
    const kind = this.#json.kind()
    if (kind === 'object') this.#scanPairs()
    else {
      this.#json.skipValue()
      if (kind !== 'null') this.metadata_problem = '`metadata` is not an object.'
    }
  }

  #parsedMetadata(): object {
    const { start, end } = this.#metadata
    const value: unknown = JSON.parse(this.bytes.toString('utf8', start, end))
    if (typeof value !== 'object' || value === null) throw new TypeError('metadata is no object')
    return value
  }

  #scanPairs(): void {
    const json = this.#json
    const start = json.at
    let pairs = 0
    let suspect = false
    let escaped = false
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      pairs++
      suspect ||= json.longerThan(METADATA_KEY_CHARACTERS_MAX, json.key_start, json.key_end, json.key_escaped)
      escaped ||= json.key_escaped
      const isEntity = json.key(METADATA_KEYS) !== null
      if (json.readString()) {
        const { text_start, text_end, text_escaped } = json
        escaped ||= text_escaped
        suspect ||= json.longerThan(METADATA_VALUE_CHARACTERS_MAX, text_start, text_end, text_escaped)
        if (isEntity) {
          setSpan(this.#entity, text_start, text_end)
          this.#entity_escaped = text_escaped
        }
      } else suspect = true
    }
    setSpan(this.#metadata, start, json.at)
    if (json.fault !== null) return
    // A repeated key may replace an invalid value, so the parsed object decides.
    if (suspect || pairs > METADATA_PAIRS_MAX) this.metadata_problem = problemOf(this.#parsedMetadata())
    if (escaped && this.metadata_problem === null)
      this.metadata_text_problem = textProblemOf(this.#parsedMetadata())
  }
}

/** A rule that a line breaks; it fails the whole file. */
export interface LineFault {
  readonly ok: false
  readonly code: ErrorCode
  /** The broken rule and, for broken JSON, the column: characters (UTF-16 units) from 1. */
  readonly message: string
  readonly param?: string
}

const KEYS = new Names('custom_id', 'method', 'url', 'body', 'metadata')
const METHODS = new Names('POST')
const URLS = new Names(...ENDPOINT_PATHS)

/** The result of looking for a key with one legal value. */
type Found = 'missing' | 'wrong' | 'right'

/** Reads lines one after the other. A scanner should be reused. */
export class LineScanner {
  readonly #validated: boolean
  #json = new JsonScanner()
  #line = new InputLine(this.#json)
  #custom_id_kind: JsonKind | null = null
  #method: Found = 'missing'
  #refusedMethod = ''
  #refusedUrl = ''
  #url: EndpointPath | 'missing' | 'wrong' = 'missing'
  /** The endpoint of the previous line, assumed for a body that stands before its line's `url`. */
  #lastUrl: EndpointPath = DEFAULT_ENDPOINT
  #body_kind: JsonKind | null = null

  /** Makes a scanner. `validated`: of a file that passed validation; `checkLine` then checks its streams. */
  constructor({ validated = false } = {}) {
    this.#validated = validated
  }

  /** Scans the line `bytes[start, end)`, given without its line break. The bytes must be valid UTF-8. */
  scan(bytes: Buffer, start: number, end: number): InputLine | LineFault {
    const json = this.#json
    json.open(bytes, start, end)
    const kind = json.kind()
    if (kind !== 'object' && kind !== null) {
      return {
        ok: false,
        code: 'not_an_object',
        message: `The line is not an object but begins like ${named(kind)}.`,
      }
    }
    this.#reset()
    if (kind === null) json.skipValue()
    else this.#scanMembers()
    const whole = json.fault === null
    json.finish()
    if (json.fault !== null) {
      const { what, at } = json.fault
      const code = whole ? 'not_an_object' : json.fault.code
      const column = bytes.toString('utf8', start, at).length + 1
      return { ok: false, code, message: `Column ${column}: ${what}.` }
    }
    const fault = this.#judge()
    if (fault !== null) return fault
    this.#matchBody(bytes)
    const { body } = this.#line
    body.unseen = body.mayBeUnseen && hasUnseen(bytes, body.span, body.endpoint.path)
    return this.#line
  }

  #urlOrLast(): EndpointPath {
    return this.#url === 'missing' || this.#url === 'wrong' ? this.#lastUrl : this.#url
  }

  /** Reads a body again if it was read for another endpoint than that of its line's `url`. */
  #matchBody(bytes: Buffer): void {
    const { body } = this.#line
    this.#lastUrl = this.#urlOrLast()
    if (body.endpoint.path === this.#lastUrl) return
    const { start, end } = body.span
    this.#json.open(bytes, start, end)
    body.scan(this.#json, this.#lastUrl)
  }

  #reset(): void {
    this.#custom_id_kind = null
    this.#method = 'missing'
    this.#url = 'missing'
    this.#body_kind = null
    this.#line.resetMetadata()
  }

  #scanMembers(): void {
    const json = this.#json
    let kind: JsonKind | null
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      switch (json.key(KEYS)) {
        case 'custom_id':
          this.#scanCustomId()
          break
        case 'method':
          kind = json.kind()
          this.#method = json.readWord(METHODS) === null ? 'wrong' : 'right'
          if (this.#method === 'wrong') this.#refusedMethod = this.#shown(kind)
          break
        case 'url':
          kind = json.kind()
          this.#url = this.#readUrl()
          if (this.#url === 'wrong') this.#refusedUrl = this.#shown(kind)
          break
        case 'body':
          this.#body_kind = json.kind()
          if (this.#body_kind === 'object') this.#line.body.scan(json, this.#urlOrLast())
          else json.skipValue()
          break
        case 'metadata':
          this.#line.scanMetadata()
          break
        default:
          json.skipValue()
      }
    }
  }

  /** Reads the `url`. A validated line may name an endpoint that the configuration no longer declares. */
  #readUrl(): EndpointPath | 'wrong' {
    const json = this.#json
    const builtIn = json.readWord(URLS)
    if (builtIn !== null || json.text_end <= json.text_start) return builtIn ?? 'wrong'
    const text = json.decode(json.text_start, json.text_end, json.text_escaped)
    if (this.#validated && isEndpointPath(text)) return text
    return endpointNamed(text) ?? 'wrong'
  }

  /** The value that was just read, quoted for a message. */
  #shown(kind: JsonKind | null): string {
    if (kind === null) return ''
    const { text_start, text_end, text_escaped } = this.#json
    return kind === 'string' ? quoted(this.#json.decode(text_start, text_end, text_escaped)) : named(kind)
  }

  #scanCustomId(): void {
    const json = this.#json
    const line = this.#line
    this.#custom_id_kind = json.kind()
    if (!json.readString()) return
    setSpan(line.custom_id_span, json.text_start, json.text_end)
    line.custom_id_escaped = json.text_escaped
  }

  /** The fault of a line of valid JSON; null if it is well formed. */
  #judge(): LineFault | null {
    const line = this.#line
    if (this.#custom_id_kind === null) return missing('custom_id')
    if (this.#custom_id_kind !== 'string') {
      return fault(
        'invalid_custom_id',
        `\`custom_id\` is ${named(this.#custom_id_kind)}, not a string.`,
        'custom_id',
      )
    }
    const { start, end } = line.custom_id_span
    if (start === end) return fault('invalid_custom_id', '`custom_id` is empty.', 'custom_id')
    if (this.#json.longerThan(CUSTOM_ID_CHARACTERS_MAX, start, end, line.custom_id_escaped)) {
      const message = `\`custom_id\` is longer than ${CUSTOM_ID_CHARACTERS_MAX} characters.`
      return fault('invalid_custom_id', message, 'custom_id')
    }
    if (this.#method === 'missing') return missing('method')
    if (this.#method === 'wrong')
      return fault('invalid_method', `\`method\` must be "POST", not ${this.#refusedMethod}.`, 'method')
    if (this.#url === 'missing') return missing('url')
    if (this.#url === 'wrong')
      return fault('invalid_url', `\`url\` must be ${endpointsText()}, not ${this.#refusedUrl}.`, 'url')
    if (this.#body_kind === null) return missing('body')
    if (this.#body_kind !== 'object') {
      return fault('invalid_body', `\`body\` is ${named(this.#body_kind)}, not an object.`, 'body')
    }
    if (line.metadata_problem !== null) return fault('invalid_metadata', line.metadata_problem, 'metadata')
    const text = this.#validated ? null : this.#textFault()
    if (text) return text
    const { streams } = line.body
    if (streams === null || this.#validated) return null
    return fault('streaming_not_supported', streamingMessage(streams), `body.${streams}`)
  }

  /** The fault of text that no database can store, which only an escape can produce. */
  #textFault(): LineFault | null {
    const line = this.#line
    const id = line.custom_id_escaped ? unstorable(line.custom_id) : null
    if (id !== null) return fault('invalid_custom_id', `\`custom_id\` ${id}.`, 'custom_id')
    const { metadata_text_problem: problem } = line
    if (problem !== null) return fault('invalid_metadata', problem, 'metadata')
    const model = line.body.model === null ? null : unstorable(line.body.model)
    return model === null ? null : fault('invalid_body', `\`model\` ${model}.`, 'body.model')
  }
}

export function streamingMessage(key: string): string {
  return `\`${key}\` cannot be used: a batch never streams. Leave it out, or set it to false.`
}

function fault(code: ErrorCode, message: string, param: string): LineFault {
  return { ok: false, code, message, param }
}

function missing(param: string): LineFault {
  return fault('missing_field', `\`${param}\` is missing.`, param)
}

const KIND_NAMES: Record<JsonKind, string> = {
  object: 'an object',
  array: 'an array',
  string: 'a string',
  number: 'a number',
  true: 'true',
  false: 'false',
  null: 'null',
}

function named(kind: JsonKind): string {
  return KIND_NAMES[kind]
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

/** The number of code points. */
function characters(text: string): number {
  let count = 0
  for (const _ of text) count++
  return count
}
