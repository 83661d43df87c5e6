// Finds the facts that checking, pricing and grouping need at the top level of a body, by the fields in the table of
// endpoints. Of a repeated key the last value counts, as in JSON.parse, so each key starts its facts anew; the
// repetition is a fact, too.
import {
  DEFAULT_ENDPOINT,
  type Endpoint,
  type EndpointPath,
  endpointOf,
  type FieldRole,
} from '../domain/endpoint.ts'
import {
  type AmbiguousKey,
  type JsonKind,
  type JsonScanner,
  Names,
  RepeatedText,
  type Span,
  setSpan,
} from './json-scan.ts'
import { MessageFacts } from './line-scan-messages.ts'

// Facts about a field of texts without parsing it: how many inputs it has, and how much of them is text,
// token IDs or media. One string is one input, and so is one list of token IDs.

type TextProblem = 'wrong_type' | 'empty'

const PART_KEYS = new Names('text', 'content')
const PART_DEPTH_MAX = 3

class TextFacts {
  readonly #documents: boolean
  inputs = 0
  /** Bytes of the field's strings as written, without their quotes. */
  text_bytes = 0
  token_ids = 0
  /** The number of objects without a text: pictures and sound. */
  media_parts = 0
  problem: TextProblem | null = null
  /** Index of the first invalid input; -1 where the whole value is invalid. */
  problem_index = -1

  /** Makes a field. `documents`: whether inputs may be objects; token IDs are then invalid. */
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

  /** Reads one input; false if it is invalid. */
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

  /** Reads an object with a text, or with a list of parts; any other object counts as media. */
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

/** A JSON number, whole or not; null where the field is absent or `null`, NaN for another kind of value. */
export type NumberField = number | null

/** A top-level field of a body: its role, and the value found. */
export class Field implements Span {
  readonly name: string
  readonly role: FieldRole
  /** The kind of the value; null where the field is absent, and then the span is empty. */
  kind: JsonKind | null = null
  start = 0
  end = 0
  /** The value of a field that should be a number. */
  number: NumberField = null
  /** Facts about a field of texts. */
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

const NO_SPANS: Span[] = []

const TOOL_TYPES = new Names('function')

/** The fields that the scanner reads in bodies of one endpoint. */
class FieldSet {
  readonly endpoint: Endpoint
  readonly names: Names<string>
  readonly fields = new Map<string, Field>()
  /** The fields of the last body, to be reset. */
  readonly found: Field[] = []
  readonly prompt: Field

  constructor(endpoint: Endpoint) {
    this.endpoint = endpoint
    this.names = new Names(...Object.keys(endpoint.fields))
    for (const [name, role] of Object.entries(endpoint.fields)) this.fields.set(name, new Field(name, role))
    const [name = ''] = endpoint.required[0] ?? []
    this.prompt = this.fields.get(name) ?? new Field(name, 'prompt')
  }
}

export class BodyFacts {
  /** The span of `body`, braces included. */
  readonly span: Span = { start: 0, end: 0 }
  /** The `model` of the body; null where it is absent or no string. */
  model: string | null = null
  /** Spans of the values of all top-level `model` keys, quotes included, in order. A new array for each line. */
  model_spans: Span[] = NO_SPANS
  /** The messages of a chat, or the items of a response. */
  readonly messages = new MessageFacts()
  /** Whether `tools` has an entry that is no function: a provider may run it and add the result to the prompt. */
  hasOtherTools = false
  /** The `encoding_format`; null where it is absent or no string. */
  encoding: string | null = null
  /** Whether fields before the prompt, such as tools, are part of what model servers cache. */
  hasLead = false
  /** The key that asks for a stream, whose value is neither `false` nor `null`; null without one. */
  streams: string | null = null
  /** Whether only the server sees parts of the prompt, such as earlier responses and files by ID (prompt-bound.ts). */
  unseen = false
  /** A field that only some model servers read as an output limit or a number of choices, whatever its value. */
  foreign: Field | null = null
  /** The first known key that a model server may read differently, and the top-level key that is or contains it. */
  ambiguous: (AmbiguousKey & { within: string }) | null = null
  readonly #models = new RepeatedText()
  readonly #words = new RepeatedText()
  readonly #sets = new Map<EndpointPath, FieldSet>()
  #set = this.#setOf(DEFAULT_ENDPOINT)

  /** The endpoint whose fields the scanner looked for. */
  get endpoint(): Endpoint {
    return this.#set.endpoint
  }

  /** The fields of the endpoint in the table of endpoints. */
  get fields(): ReadonlyMap<string, Field> {
    return this.#set.fields
  }

  /** The prompt, or the part of it that lines are most likely to share. */
  get prompt(): Readonly<Span> {
    return this.#set.prompt
  }

  get found(): readonly Field[] {
    return this.#set.found
  }

  reset(): void {
    setSpan(this.span, 0, 0)
    this.model = null
    this.model_spans = NO_SPANS
    this.messages.reset()
    // `length = 0` would free the array's memory, for which the next line allocates anew.
    while (this.#set.found.length > 0) this.#set.found.pop()!.reset()
    this.hasOtherTools = false
    this.hasLead = false
    this.encoding = null
    this.streams = null
    this.unseen = false
    this.foreign = null
    this.ambiguous = null
  }

  /** Whether the prompt may have unseen parts, as far as that shows without parsing the body. */
  get mayBeUnseen(): boolean {
    const { messages, found, hasOtherTools } = this
    const isSuspect = ({ name, role, isGiven }: Field): boolean =>
      isGiven && (role === 'reference' || (name === 'tools' && role === 'prompt'))
    return messages.hasOthers || hasOtherTools || found.some(isSuspect)
  }

  /** Reads the object that `json` stands at, as a body for this endpoint. */
  scan(json: JsonScanner, endpoint: EndpointPath): void {
    this.reset()
    this.#set = this.#setOf(endpoint)
    const { names, fields, found } = this.#set
    json.clearAmbiguous()
    const start = json.at
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      const key = json.key(names)
      const field = key === null ? undefined : fields.get(key)
      if (field === undefined) json.skipValue()
      else {
        if (field.kind === null) found.push(field)
        field.kind = json.kind()
        field.start = json.at
        this.#scanField(json, field)
        field.end = json.at
      }
      if (json.ambiguous !== null && this.ambiguous === null)
        this.ambiguous = { ...json.ambiguous, within: key ?? json.ambiguous.key }
    }
    setSpan(this.span, start, json.at)
  }

  #setOf(path: EndpointPath): FieldSet {
    let set = this.#sets.get(path)
    if (set === undefined) {
      set = new FieldSet(endpointOf(path))
      this.#sets.set(path, set)
    }
    return set
  }

  #scanField(json: JsonScanner, field: Field): void {
    switch (field.role) {
      case 'model':
        this.#scanModel(json)
        break
      case 'messages':
      case 'items':
        this.messages.scan(json, field.role)
        break
      case 'texts':
      case 'documents':
        field.texts?.scan(json)
        break
      case 'limit':
      case 'choices':
      case 'count':
      case 'number':
        field.number = numberField(json)
        break
      case 'tools':
        this.hasLead = true
        this.#scanTools(json)
        break
      case 'encoding':
        this.encoding = this.#words.read(json)
        break
      case 'stream':
        // An error names `stream` rather than its options.
        if (field.isGiven && field.kind !== 'false' && this.streams !== 'stream') this.streams = field.name
        json.skipValue()
        break
      case 'foreign limit':
      case 'foreign choices':
        this.foreign ??= field
        json.skipValue()
        break
      case 'prompt':
        this.hasLead = true
        json.skipValue()
        break
      case 'format':
      case 'reference':
      case 'background':
        json.skipValue()
    }
  }

  #scanModel(json: JsonScanner): void {
    const start = json.at
    this.model = this.#models.read(json)
    const span = { start, end: json.at }
    // A literal takes less memory than an array that grows to seventeen places, and most bodies have one model.
    if (this.model_spans.length === 0) this.model_spans = [span]
    else this.model_spans.push(span)
  }

  #scanTools(json: JsonScanner): void {
    this.hasOtherTools = json.kind() !== 'array'
    for (let more = json.beginArray(); more; more = json.nextElement())
      if (!json.readTyped(TOOL_TYPES)) this.hasOtherTools = true
  }
}

function numberField(json: JsonScanner): number | null {
  const kind = json.kind()
  if (kind === 'number') return json.readNumber()
  json.skipValue()
  return kind === 'null' ? null : Number.NaN
}
