// A top-level field of a body: what it is read for, and what was found there.

import type { FieldRole } from '../domain/endpoint.ts'
import type { JsonKind, JsonScanner } from './json-scan.ts'
import { Names } from './json-scan-names.ts'
import { type Span, setSpan } from './line-scan-span.ts'

// What can be said about a field of texts without parsing it: how many inputs it has, and how much of them is text,
// token IDs or media. One string is one input, and so is one list of token IDs.

type TextProblem = 'wrong_type' | 'empty'

const PART_KEYS = new Names('text', 'content')
const PART_DEPTH_MAX = 3

class TextFacts {
  readonly #documents: boolean
  inputs = 0
  /** Of strings, as written, without their quotes. */
  text_bytes = 0
  token_ids = 0
  /** Objects without a text (pictures, sound): how many. */
  media_parts = 0
  problem: TextProblem | null = null
  /** Index of the input that cannot be right; -1 where the whole value cannot. */
  problem_index = -1

  /** `documents`: inputs may be objects, and none is made of token IDs. */
  constructor(documents: boolean) {
    this.#documents = documents
  }

  /** Reads the value that `json` stands at. */
  scan(json: JsonScanner): void {
    this.inputs = 0
    this.text_bytes = 0
    this.token_ids = 0
    this.media_parts = 0
    this.problem = null
    this.problem_index = -1
    if (json.kind() !== 'array') {
      if (this.#scanInput(json)) this.inputs = 1
      else this.#fault('wrong_type', -1)
      return
    }
    let index = 0
    let ids = 0
    for (let more = json.beginArray(); more; more = json.nextElement()) {
      if (!this.#documents && json.kind() === 'number') {
        ids++
        json.skipValue()
      } else if (!this.#scanInput(json)) this.#fault('wrong_type', index)
      index++
    }
    if (index === 0) this.#fault('empty', -1)
    else if (ids > 0 && ids < index) this.#fault('wrong_type', -1)
    this.token_ids += ids
    this.inputs = ids > 0 ? 1 : index
  }

  /** One input; false if it is none. */
  #scanInput(json: JsonScanner): boolean {
    const kind = json.kind()
    if (this.#documents && kind === 'object') {
      this.#scanPart(json, 1)
      return true
    }
    if (!this.#documents && kind === 'array') return this.#scanTokenIds(json)
    if (json.readString()) this.text_bytes += json.text_end - json.text_start
    return kind === 'string'
  }

  #scanTokenIds(json: JsonScanner): boolean {
    let ids = 0
    let sound = true
    for (let more = json.beginArray(); more; more = json.nextElement()) {
      ids++
      if (json.kind() !== 'number') sound = false
      json.skipValue()
    }
    this.token_ids += ids
    return sound && ids > 0
  }

  /** An object with a text, or with a list of parts; anything else in it is media. */
  #scanPart(json: JsonScanner, depth: number): void {
    let isText = false
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      const key = json.key(PART_KEYS)
      const kind: JsonKind | null = json.kind()
      if (key !== null && kind === 'string') {
        if (json.readString()) this.text_bytes += json.text_end - json.text_start
        isText = true
      } else if (key === 'content' && kind === 'array' && depth < PART_DEPTH_MAX) {
        isText = true
        for (let part = json.beginArray(); part; part = json.nextElement()) {
          if (json.kind() === 'object') this.#scanPart(json, depth + 1)
          else json.skipValue()
        }
      } else json.skipValue()
    }
    if (!isText) this.media_parts++
  }

  #fault(problem: TextProblem, index: number): void {
    if (this.problem !== null) return
    this.problem = problem
    this.problem_index = index
  }
}

/** The JSON number, whole or not; null where the field is absent or `null`, NaN where it is something else. */
export type NumberField = number | null

export class Field implements Span {
  readonly name: string
  readonly role: FieldRole
  /** Null where the field is absent; the span is empty then. */
  kind: JsonKind | null = null
  start = 0
  end = 0
  /** Of a field that should be a number. */
  number: NumberField = null
  /** Of a field of texts. */
  readonly texts: TextFacts | null

  constructor(name: string, role: FieldRole) {
    this.name = name
    this.role = role
    this.texts = role === 'texts' || role === 'documents' ? new TextFacts(role === 'documents') : null
  }

  get isGiven(): boolean {
    return this.kind !== null && this.kind !== 'null'
  }

  reset(): void {
    this.kind = null
    this.number = null
    setSpan(this, 0, 0)
  }
}
