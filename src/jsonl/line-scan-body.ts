// The facts that checking, pricing and grouping need from the top level of a body. Of a key given twice the
// last one counts, as in JSON.parse: so each key starts its facts anew. That it is given twice is a fact, too.
import type { DoubtfulKey, JsonKind, JsonScanner } from './json-scan.ts'
import { Names } from './json-scan-names.ts'
import { type MessageFacts, MessagesScan } from './line-scan-messages.ts'
import { RepeatedText, type Span, setSpan } from './line-scan-span.ts'

/**
 * A number field of the body: null where it is absent or `null`, NaN where it is something else than a
 * number. The JSON number otherwise, whole or not.
 */
export type NumberField = number | null

export interface BodyFacts {
  /** The bytes of `body`, braces included. */
  readonly span: Span
  /** Null where `model` is absent or no string. */
  readonly model: string | null
  /** Every value of a top-level `model` key, quotes included, in order; more than one if it is given twice. */
  readonly model_spans: readonly Span[]
  readonly max_tokens: NumberField
  readonly max_completion_tokens: NumberField
  readonly n: NumberField
  readonly temperature: NumberField
  readonly messages: MessageFacts
  /** Kinds are null where the key is absent; spans are empty then. */
  readonly tools_kind: JsonKind | null
  readonly tools: Span
  readonly tools_count: number
  /** Index of the first entry of `tools` that is no `{type: "function", function: {name}}`, or -1. */
  readonly tools_problem_index: number
  readonly response_format_kind: JsonKind | null
  readonly response_format: Span
  /** `response_format.type`; null where it is absent or no string. */
  readonly response_format_type: string | null
  /** Whether `response_format.json_schema` is an object with a string `name`, its `schema` (if any) an object. */
  readonly response_format_schema_ok: boolean
  /** Which of the keys that speak of a stream the body has, whatever its value. */
  readonly streams: 'stream' | 'stream_options' | null
  /** A key that only some model servers read as an output limit or a number of choices, whatever its value. */
  readonly serverSpecific: ServerSpecificKey | null
  /** The first key among those read here that a model server may read differently, and the top-level key it lies in or is. */
  readonly doubtful: (DoubtfulKey & { within: string }) | null
}

/** What llama.cpp, vLLM, TGI and Ollama read besides `max_tokens` and `n`, and which of the two it stands for. */
export const SERVER_SPECIFIC_KEYS = {
  best_of: 'n',
  max_length: 'max_tokens',
  max_new_tokens: 'max_tokens',
  max_output_tokens: 'max_tokens',
  max_tokens_to_sample: 'max_tokens',
  n_cmpl: 'n',
  n_predict: 'max_tokens',
  num_predict: 'max_tokens',
  num_return_sequences: 'n',
} as const
export type ServerSpecificKey = keyof typeof SERVER_SPECIFIC_KEYS

const KEYS = new Names(
  'model',
  'messages',
  'max_tokens',
  'max_completion_tokens',
  'n',
  'temperature',
  'tools',
  'response_format',
  'stream',
  'stream_options',
  'best_of',
  'max_length',
  'max_new_tokens',
  'max_output_tokens',
  'max_tokens_to_sample',
  'n_cmpl',
  'n_predict',
  'num_predict',
  'num_return_sequences',
)
const TOOL_KEYS = new Names('type', 'function')
const TOOL_TYPES = new Names('function')
const FUNCTION_KEYS = new Names('name')
const FORMAT_KEYS = new Names('type', 'json_schema')
const SCHEMA_KEYS = new Names('name', 'schema')

export class BodyScan implements BodyFacts {
  readonly span: Span = { start: 0, end: 0 }
  readonly model_spans: Span[] = []
  max_tokens: NumberField = null
  max_completion_tokens: NumberField = null
  n: NumberField = null
  temperature: NumberField = null
  readonly messages = new MessagesScan()
  tools_kind: JsonKind | null = null
  readonly tools: Span = { start: 0, end: 0 }
  tools_count = 0
  tools_problem_index = -1
  response_format_kind: JsonKind | null = null
  readonly response_format: Span = { start: 0, end: 0 }
  response_format_type: string | null = null
  response_format_schema_ok = false

  serverSpecific: ServerSpecificKey | null = null
  doubtful: BodyFacts['doubtful'] = null
  model: string | null = null
  readonly #models = new RepeatedText()
  readonly #formats = new RepeatedText()
  #stream = false
  #stream_options = false

  get streams(): 'stream' | 'stream_options' | null {
    if (this.#stream) return 'stream'
    return this.#stream_options ? 'stream_options' : null
  }

  reset(): void {
    setSpan(this.span, 0, 0)
    this.model = null
    this.model_spans.length = 0
    this.max_tokens = null
    this.max_completion_tokens = null
    this.n = null
    this.temperature = null
    this.messages.reset()
    this.#resetTools()
    this.#resetFormat()
    this.#stream = false
    this.#stream_options = false
    this.serverSpecific = null
    this.doubtful = null
  }

  /** Reads the object that `json` stands at. */
  scan(json: JsonScanner): void {
    this.reset()
    json.clearDoubts()
    const start = json.at
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      const key = json.key(KEYS)
      switch (key) {
        case 'model':
          this.#scanModel(json)
          break
        case 'messages':
          this.messages.scan(json)
          break
        case 'max_tokens':
          this.max_tokens = numberField(json)
          break
        case 'max_completion_tokens':
          this.max_completion_tokens = numberField(json)
          break
        case 'n':
          this.n = numberField(json)
          break
        case 'temperature':
          this.temperature = numberField(json)
          break
        case 'tools':
          this.#scanTools(json)
          break
        case 'response_format':
          this.#scanFormat(json)
          break
        case 'stream':
          this.#stream = true
          json.skipValue()
          break
        case 'stream_options':
          this.#stream_options = true
          json.skipValue()
          break
        case null:
          json.skipValue()
          break
        default:
          this.serverSpecific ??= key
          json.skipValue()
      }
      if (json.doubtful !== null && this.doubtful === null)
        this.doubtful = { ...json.doubtful, within: key ?? json.doubtful.key }
    }
    setSpan(this.span, start, json.at)
  }

  #scanModel(json: JsonScanner): void {
    const start = json.at
    if (json.kind() === 'string') {
      json.readString()
      this.model = this.#models.read(json)
    } else {
      json.skipValue()
      this.model = null
    }
    this.model_spans.push({ start, end: json.at })
  }

  #resetTools(): void {
    this.tools_kind = null
    setSpan(this.tools, 0, 0)
    this.tools_count = 0
    this.tools_problem_index = -1
  }

  #scanTools(json: JsonScanner): void {
    this.#resetTools()
    const start = json.at
    this.tools_kind = json.kind()
    if (this.tools_kind === 'array') {
      for (let more = json.beginArray(); more; more = json.nextElement()) {
        if (!isTool(json) && this.tools_problem_index < 0) this.tools_problem_index = this.tools_count
        this.tools_count++
      }
    } else json.skipValue()
    setSpan(this.tools, start, json.at)
  }

  #resetFormat(): void {
    this.response_format_kind = null
    setSpan(this.response_format, 0, 0)
    this.response_format_type = null
    this.response_format_schema_ok = false
  }

  #scanFormat(json: JsonScanner): void {
    this.#resetFormat()
    const start = json.at
    this.response_format_kind = json.kind()
    if (this.response_format_kind === 'object') {
      for (let more = json.beginObject(); more; more = json.nextMember()) {
        const key = json.key(FORMAT_KEYS)
        if (key === 'type') this.response_format_type = readText(json, this.#formats)
        else if (key === 'json_schema') this.response_format_schema_ok = isNamedSchema(json)
        else json.skipValue()
      }
    } else json.skipValue()
    setSpan(this.response_format, start, json.at)
  }
}

function numberField(json: JsonScanner): NumberField {
  const kind = json.kind()
  if (kind === 'number') return json.readNumber()
  json.skipValue()
  return kind === 'null' ? null : Number.NaN
}

function readText(json: JsonScanner, texts: RepeatedText): string | null {
  if (json.kind() === 'string') {
    json.readString()
    return texts.read(json)
  }
  json.skipValue()
  return null
}

/** Whether the value ahead is `{type: "function", function: {name: string}}`; steps over it. */
function isTool(json: JsonScanner): boolean {
  let is_function = false
  let named = false
  if (json.kind() !== 'object') {
    json.skipValue()
    return false
  }
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const key = json.key(TOOL_KEYS)
    if (key === 'type' && json.kind() === 'string') {
      json.readString()
      is_function = json.text(TOOL_TYPES) !== null
    } else if (key === 'function' && json.kind() === 'object') {
      named = false
      for (let inner = json.beginObject(); inner; inner = json.nextMember()) {
        if (json.key(FUNCTION_KEYS) !== null) named = json.kind() === 'string'
        json.skipValue()
      }
    } else {
      if (key === 'type') is_function = false
      if (key === 'function') named = false
      json.skipValue()
    }
  }
  return is_function && named
}

/** Whether the value ahead is `{name: string, schema?: object}`; steps over it. */
function isNamedSchema(json: JsonScanner): boolean {
  let named = false
  let schema_ok = true
  if (json.kind() !== 'object') {
    json.skipValue()
    return false
  }
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const key = json.key(SCHEMA_KEYS)
    if (key === 'name') named = json.kind() === 'string'
    if (key === 'schema') schema_ok = json.kind() === 'object'
    json.skipValue()
  }
  return named && schema_ok
}
