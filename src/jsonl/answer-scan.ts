// Scans the answer of a model server in place: whether it is valid, its usage, and where to insert its cost. Every byte
// is checked, and no objects are created: the result file gets the same bytes that the server sent.
import {
  type AnswerShape,
  DEFAULT_ENDPOINT,
  type Endpoint,
  type EndpointPath,
  endpointOf,
} from '../domain/endpoint.ts'
import { partsWithin, type TokenParts, type TokenUsage } from '../domain/money.ts'
import { type JsonKind, JsonScanner, Names, type Span, setSpan } from './json-scan.ts'

export interface Answer {
  /** The reported usage; null where the server reports none, or one with an invalid count. */
  usage: TokenUsage | null
  /** Whether the reported usage has to be replaced: a count in it is invalid, or `usage` has other counts. */
  isUsageRejected: boolean
  /** The list of the answer's entries, such as `choices`. */
  content: Span
  entries: EntryFacts
  /** Bytes of the generated content, as written; 0 for an answer without any. */
  generated_bytes: number
  /** The `stop_reason` of a message; null where it is absent or not in STOP_REASONS. */
  stop_reason: StopReason | null
  /** The service tier that the answer names, by which it is priced. */
  service_tier: string | null
  /** Whether the status of the answer is that of a response that was cut off. */
  isIncomplete: boolean
  cost: CostPlace
  /** The position of the whole usage, or the position to insert one. */
  usage_place: CostPlace
}

/** Facts about the `index` members of the answer's entries; empty for an endpoint whose entries have none. */
interface EntryFacts {
  count: number
  /** The largest `index`; Infinity where one is no count, -1 where no entry has one. */
  index_max: number
  isIndexRepeated: boolean
}

/**
 * The place for `cost_usd`: the bytes from `start` to `end` are replaced by
 * - `cost`: the value alone, since the answer has a cost already;
 * - `member`: the member `cost_usd`, inside the usage;
 * - `usage`: a whole usage, in place of an invalid one;
 * - `usage_member`: the member `usage`, since the answer has none.
 * `comma`: whether other members stand before it.
 */
export interface CostPlace {
  start: number
  end: number
  kind: 'cost' | 'member' | 'usage' | 'usage_member'
  comma: boolean
}

const STOP_REASONS = [
  'end_turn',
  'max_tokens',
  'stop_sequence',
  'tool_use',
  'pause_turn',
  'refusal',
  'model_context_window_exceeded',
] as const
type StopReason = (typeof STOP_REASONS)[number]

/** A kind of tokens that a usage counts within the prompt or the completion. */
type Part = 'cached' | 'written' | 'written_5m' | 'written_1h' | 'reasoning'

/**
 * The parts of a usage by the names that providers give them, in the usage itself or in an object of details: those of
 * OpenAI, Anthropic, DeepSeek, DashScope, LiteLLM and Vercel's gateway. A proxy gives the same count by several names.
 */
const PARTS: ReadonlyMap<string, Part> = new Map([
  ['cached_tokens', 'cached'],
  ['cache_read_input_tokens', 'cached'],
  ['cache_read_tokens', 'cached'],
  ['prompt_cache_hit_tokens', 'cached'],
  ['num_cached_tokens', 'cached'],
  ['cache_write_tokens', 'written'],
  ['cache_write_input_tokens', 'written'],
  ['cache_creation_tokens', 'written'],
  ['cache_creation_input_tokens', 'written'],
  ['ephemeral_5m_input_tokens', 'written_5m'],
  ['ephemeral_1h_input_tokens', 'written_1h'],
  ['reasoning_tokens', 'reasoning'],
  ['thinking_tokens', 'reasoning'],
])

/** The objects in which a usage has its parts; some contain others. */
const DETAILS = [
  ...['prompt_tokens_details', 'completion_tokens_details', 'input_tokens_details', 'output_tokens_details'],
  ...['prompt_token_details', 'input_token_details', 'output_token_details'],
  ...['cache_creation', 'cache_creation_token_details'],
] as const
const DETAIL_KEYS = new Names(...DETAILS, ...PARTS.keys())

/** The members that the scanner looks for in the answers of one endpoint. */
interface Wanted {
  shape: AnswerShape
  keys: Names<string>
  entryKeys: Names<string>
  statuses: Names<string>
  usageKeys: Names<string>
  input: string
  output: string | null
  isCacheApart: boolean
  unit: 'tokens' | 'seconds' | 'requests'
}

const WANTED = new WeakMap<Endpoint, Wanted>()

function wantedOf(path: EndpointPath): Wanted {
  const endpoint = endpointOf(path)
  let wanted = WANTED.get(endpoint)
  if (wanted === undefined) {
    wanted = wantedFrom(endpoint)
    WANTED.set(endpoint, wanted)
  }
  return wanted
}

function wantedFrom({ answer, usage }: Endpoint): Wanted {
  return {
    shape: answer,
    keys: new Names(
      answer.list,
      'usage',
      'service_tier',
      ...(answer.statuses === null ? [] : ['status']),
      ...(answer.list === 'content' ? ['stop_reason'] : []),
    ),
    entryKeys: new Names('index', 'finish_reason', ...entryNames(answer)),
    statuses: new Names(...(answer.statuses ?? [])),
    usageKeys: new Names(
      usage.input,
      ...(usage.output === null ? [] : [usage.output]),
      'cost_usd',
      'service_tier',
      // A server that bills in another unit means something else by tokens.
      ...(usage.unit === undefined ? ['total_tokens', ...DETAILS, ...PARTS.keys()] : []),
    ),
    input: usage.input,
    output: usage.output,
    isCacheApart: usage.isCacheApart ?? false,
    unit: usage.unit ?? 'tokens',
  }
}

/** The members of an answer's entry that hold its content. */
function entryNames({ entry }: AnswerShape): string[] {
  return entry === null ? [] : [entry.key, ...(entry.alias === undefined ? [] : [entry.alias])]
}

/** Bytes of an empty JSON text, list or object: `""`, `[]` or `{}`. */
const EMPTY_BYTES = 2
const MESSAGE_KEYS = new Names('role', 'content', 'tool_calls')
const NO_PARTS: Readonly<Record<Part, number>> = {
  cached: 0,
  written: 0,
  written_5m: 0,
  written_1h: 0,
  reasoning: 0,
}
const STOP_WORDS = new Names(...STOP_REASONS)
/** Finish reasons of an entry whose content a filter removed. */
const WITHHELD = new Names('content_filter', 'content_filtered', 'safety', 'sensitive')
/** Finish reasons of a generation that the server interrupted: its text is not the answer. */
const INTERRUPTED = new Names('abort', 'error')
const NOT_A_NUMBER = /^-?(NaN|Infin)/
/** The limit of a service tier's length: a longer text is ignored. */
const SERVICE_TIER_BYTES_MAX = 64
/** The limit of a token count. A larger count is a fault of the server, such as -1 in 32 bits, and is not billed. */
const TOKENS_MAX = 100_000_000

export class AnswerScanner {
  readonly #json = new JsonScanner()
  #wanted = wantedOf(DEFAULT_ENDPOINT)
  readonly #content: Span = { start: 0, end: 0 }
  /** The last list had every index below this one; `#indexes_beside` has the others that it had. */
  #index_next = 0
  readonly #indexes_beside = new Set<number>()
  #isIndexRepeated = false
  #index_max = -1
  #generated_bytes = 0
  /** The bytes of generated text of the last scanned entry. */
  #said_bytes = 0
  #input_tokens: number | null = null
  #output_tokens: number | null = null
  #total_tokens: number | null = null
  readonly #parts: Record<Part, number> = { ...NO_PARTS }
  #hasList = false
  /** The number of entries of the last scanned list. */
  #entries = 0
  /** The number of entries in #entries whose content a filter removed. */
  #withheld = 0
  #service_tier: string | null = null
  #reported = false
  /** Whether every reported count is a valid count. */
  #counts = true
  #cost: CostPlace | null = null
  #usage_place: CostPlace | null = null
  /** The reason for which the last scanned bytes are no answer. */
  fault = ''
  /** Whether the answer has a wrong form, rather than being truncated or an error: a retry would get the same. */
  isWrongForm = false

  /** The answer in `bytes`, which are valid UTF-8; null if the bytes hold no answer of this endpoint. */
  scan(bytes: Buffer, endpoint: EndpointPath): Answer | null {
    const json = this.#json
    const wanted = wantedOf(endpoint)
    this.#wanted = wanted
    json.open(bytes, 0, bytes.length)
    this.fault = 'the answer is not a JSON object'
    this.isWrongForm = false
    this.#hasList = false
    if (json.kind() !== 'object') return null
    this.#resetUsage()
    this.#service_tier = null
    this.#generated_bytes = 0
    let listFault: string | null = `the answer has no ${wanted.shape.list}`
    let statusFault: string | null = null
    let isEmpty = true
    let isIncomplete = false
    let stop_reason: StopReason | null = null
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      isEmpty = false
      const key = json.key(wanted.keys)
      // JSON.parse keeps the last of equal members, and so does this scanner.
      if (key === null) json.skipValue()
      else if (key === 'usage') this.#scanUsage()
      else if (key === 'service_tier') this.#scanServiceTier()
      else if (key === 'status') {
        const status = json.readWord(wanted.statuses)
        isIncomplete = status === 'incomplete'
        statusFault = status !== null ? null : 'the status of the answer is none of an answer'
      } else if (key === 'stop_reason') {
        const isText = json.readString()
        stop_reason = isText ? json.text(STOP_WORDS) : null
        statusFault = isText ? this.#interruption() : null
      } else listFault = this.#scanList()
    }
    const brace = json.at - 1
    json.finish()
    if (json.fault !== null || statusFault !== null || listFault !== null) {
      const hasNaN =
        json.fault !== null && NOT_A_NUMBER.test(bytes.toString('latin1', json.fault.at, json.fault.at + 8))
      const jsonFault = hasNaN
        ? 'the answer has NaN or Infinity, which JSON has not'
        : 'the answer is nested too deep'
      this.fault = json.fault ? jsonFault : (statusFault ?? listFault ?? '')
      const isVectors = this.#hasList && statusFault === null && wanted.output === null
      this.isWrongForm = json.fault ? hasNaN : isVectors
      return null
    }
    const usage = this.#usage()
    const usage_place: CostPlace = this.#usage_place ?? {
      start: brace,
      end: brace,
      kind: 'usage_member',
      comma: !isEmpty,
    }
    const isUsageRejected = this.#reported && (usage === null || !this.#stands(usage))
    return {
      usage,
      isUsageRejected,
      content: { ...this.#content },
      entries: {
        count: this.#entries,
        index_max: this.#index_max,
        isIndexRepeated: this.#isIndexRepeated,
      },
      generated_bytes: this.#generated_bytes,
      stop_reason,
      service_tier: this.#service_tier,
      isIncomplete,
      cost: usage === null || isUsageRejected ? usage_place : (this.#cost ?? usage_place),
      usage_place,
    }
  }

  /** The defect of the list of entries; null if all of them are whole. A list of named entries must not be empty. */
  #scanList(): string | null {
    const json = this.#json
    const { shape, output } = this.#wanted
    const { entry } = shape
    const start = json.at
    this.#generated_bytes = 0
    this.#entries = 0
    this.#withheld = 0
    if (shape.isAny) {
      const kind = json.kind()
      json.skipValue()
      setSpan(this.#content, start, json.at)
      if (output !== null) this.#generated_bytes = this.#contentBytesSince(start, kind)
      return kind === 'null' ? `the answer has no ${shape.list}` : null
    }
    this.#index_next = 0
    // Clearing an empty set takes memory as well.
    if (this.#indexes_beside.size > 0) this.#indexes_beside.clear()
    this.#index_max = -1
    this.#isIndexRepeated = false
    const isList = json.kind() === 'array'
    this.#hasList = isList
    let fault: string | null = null
    for (let more = json.beginArray(); more; more = json.nextElement()) {
      this.#entries++
      const own = this.#scanEntry()
      fault ??= own
    }
    setSpan(this.#content, start, json.at)
    if (entry === null && this.#entries > 0) this.#generated_bytes = json.at - start
    if (!isList) return `the answer has no ${shape.list}`
    if (this.#entries === 0 && entry !== null) return `the list of ${shape.list} is empty`
    return this.#withheld > 0 && this.#withheld === this.#entries ? 'the content was filtered' : fault
  }

  #scanEntry(): string | null {
    const json = this.#json
    const { entryKeys, shape, output } = this.#wanted
    const { list, entry } = shape
    const isObject = json.kind() === 'object'
    let bytes = 0
    let fault: string | null = entry === null ? null : `one of the ${list} has no ${entry.key}`
    let finishFault: string | null = null
    let index: number | null = null
    let isWithheld = false
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      const key = json.key(entryKeys)
      if (key === 'finish_reason') {
        finishFault = json.kind() === 'null' ? null : 'a finish_reason is no text'
        if (json.readString()) {
          finishFault = this.#interruption()
          isWithheld = json.text(WITHHELD) !== null
        }
      } else if (key === 'index' && json.kind() !== 'null') index = this.#count() ?? Number.POSITIVE_INFINITY
      else if (entry !== null && (key === entry.key || key === entry.alias)) {
        this.#said_bytes = 0
        fault = this.#scanContent(entry.kinds)
        bytes = this.#said_bytes
      } else json.skipValue()
    }
    if (!isObject) return `one of the ${list} is not an object`
    if (output !== null) this.#generated_bytes += bytes
    if (fault !== null && isWithheld) {
      this.#withheld++
      fault = null
    }
    if (fault !== null || finishFault !== null) return fault ?? finishFault
    if (index === null) return null
    if (index < this.#index_next || this.#indexes_beside.has(index)) this.#isIndexRepeated = true
    else if (index === this.#index_next) this.#index_next++
    else this.#indexes_beside.add(index)
    this.#index_max = Math.max(this.#index_max, index)
    return null
  }

  /** The fault to report if the last string is an INTERRUPTED finish reason; null otherwise. */
  #interruption(): string | null {
    const word = this.#json.text(INTERRUPTED)
    return word === null ? null : `generation broke off (${word})`
  }

  #scanContent(kinds: readonly JsonKind[]): string | null {
    const kind = this.#json.kind()
    if (kind === 'object' && kinds.includes(kind)) return this.#scanMessage()
    const start = this.#json.at
    this.#json.skipValue()
    this.#said_bytes = this.#contentBytesSince(start, kind)
    if (kind !== null && kinds.includes(kind)) return null
    const { list, entry } = this.#wanted.shape
    return `one of the ${list} has no ${entry?.key}`
  }

  /** The bytes of a value of this kind that ends here; 0 for an empty text, list or object. */
  #contentBytesSince(start: number, kind: JsonKind | null): number {
    const bytes = this.#json.at - start
    return kind === 'null' || bytes <= EMPTY_BYTES ? 0 : bytes
  }

  /** The defect of the message; null if it is an object with content of the right kinds. */
  #scanMessage(): string | null {
    const json = this.#json
    const start = json.at
    let isEmpty = true
    let isSaid = false
    let role = true
    let content = true
    let calls = true
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      isEmpty = false
      const key = json.key(MESSAGE_KEYS)
      const kind = json.kind()
      if (key === 'role') role = kind === 'string' || kind === 'null'
      else if (key === 'content') content = kind === 'string' || kind === 'null' || kind === 'array'
      else if (key === 'tool_calls') calls = kind === 'array' || kind === 'null'
      const from = json.at
      json.skipValue()
      // A message may hold reasoning, or a reason not to answer, besides its content.
      if (key !== 'role' && this.#contentBytesSince(from, kind) > 0) isSaid = true
    }
    if (isSaid) this.#said_bytes = json.at - start
    if (isEmpty) return 'a message is empty'
    if (!role) return 'the role of a message is no text'
    if (!content) return 'the content of a message is neither text nor parts'
    return calls ? null : 'the tool calls of a message are no list'
  }

  #scanUsage(): void {
    const json = this.#json
    const { usageKeys, input, output } = this.#wanted
    this.#resetUsage()
    const start = json.at
    const kind = json.kind()
    if (kind !== 'object') {
      json.skipValue()
      this.#usage_place = { start, end: json.at, kind: 'usage', comma: false }
      this.#cost = this.#usage_place
      this.#reported = kind !== 'null'
      return
    }
    let own: CostPlace | null = null
    let isEmpty = true
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      isEmpty = false
      const key = json.key(usageKeys)
      if (key === null) json.skipValue()
      else if (key === input) this.#input_tokens = this.#count()
      else if (key === output) this.#output_tokens = this.#count()
      // Some servers report no total.
      else if (key === 'total_tokens') this.#total_tokens = this.#countOrNull()
      else if (key === 'service_tier') this.#scanServiceTier()
      else if (key !== 'cost_usd') this.#scanPart(key)
      else {
        const from = json.at
        json.skipValue()
        own = { start: from, end: json.at, kind: 'cost', comma: false }
      }
    }
    const brace = json.at - 1
    this.#usage_place = { start, end: json.at, kind: 'usage', comma: false }
    this.#reported = true
    this.#cost = own ?? { start: brace, end: brace, kind: 'member', comma: !isEmpty }
  }

  #scanServiceTier(): void {
    const json = this.#json
    if (!json.readString() || json.text_end - json.text_start > SERVICE_TIER_BYTES_MAX) return
    this.#service_tier = json.decode(json.text_start, json.text_end, json.text_escaped)
  }

  /** Reads the value of `key` in a usage: a part, or an object of parts. */
  #scanPart(key: string): void {
    const json = this.#json
    const part = PARTS.get(key)
    if (part === undefined) {
      for (let more = json.beginObject(); more; more = json.nextMember()) {
        const name = json.key(DETAIL_KEYS)
        if (name === null) json.skipValue()
        else this.#scanPart(name)
      }
      return
    }
    // A cache count that the usage keeps apart from its input is needed for the total; the other parts are details.
    const isNeeded = this.#wanted.isCacheApart && part !== 'reasoning'
    const count = (isNeeded ? this.#countOrNull() : this.#count()) ?? 0
    this.#parts[part] = Math.max(this.#parts[part], count)
  }

  /** Reads a token count that may be null; any other value makes the usage invalid. */
  #countOrNull(): number | null {
    const isNull = this.#json.kind() === 'null'
    const count = this.#count()
    if (count === null && !isNull) this.#counts = false
    return count
  }

  /** Reads a whole number of tokens up to TOKENS_MAX; null for any other value. */
  #count(): number | null {
    if (this.#json.kind() !== 'number') {
      this.#json.skipValue()
      return null
    }
    const read = this.#json.readNumber()
    const value = this.#wanted.unit === 'seconds' ? Math.ceil(read) : read
    return Number.isInteger(value) && value >= 0 && value <= TOKENS_MAX ? value : null
  }

  /**
   * The usage in one form for all providers: the prompt includes the tokens read from a cache and written to it, the
   * completion includes reasoning tokens, and the total is no less than their sum.
   */
  #usage(): TokenUsage | null {
    const { unit, output, isCacheApart } = this.#wanted
    if (unit === 'requests') return { prompt_tokens: 1, completion_tokens: 0, total_tokens: 1 }
    if (!this.#counts) return null
    const total = this.#total_tokens ?? 0
    // An endpoint that generates nothing has prompt tokens only, and some servers report only their total.
    const input = output === null ? (this.#input_tokens ?? this.#total_tokens) : this.#input_tokens
    let completion_tokens = output === null ? 0 : this.#output_tokens
    if (input === null || completion_tokens === null) return null
    const { cached, written, written_5m, written_1h, reasoning } = this.#parts
    const cache_write_tokens = Math.max(written, written_5m + written_1h)
    const cache = cached + cache_write_tokens
    const rest = total - input - completion_tokens
    // Some chat servers count cached tokens apart from the prompt; one adds them up over the choices.
    const isBeside =
      isCacheApart ||
      (cache > input && this.#entries <= 1) ||
      (cache > 0 && (rest === cache ? reasoning !== cache : reasoning > 0 && rest === cache + reasoning))
    const prompt_tokens = input + (isBeside ? cache : 0)
    // Most servers count reasoning tokens in the completion; xAI does not.
    const sum = prompt_tokens + completion_tokens
    if (output !== null && (reasoning > completion_tokens || total >= sum + reasoning))
      completion_tokens += reasoning
    const total_tokens = Math.max(total, prompt_tokens + completion_tokens)
    const counts = { prompt_tokens, completion_tokens, total_tokens }
    if (cache + reasoning === 0) return counts
    const parts: TokenParts = {
      ...{ cached_tokens: cached, cache_write_tokens, cache_write_1h_tokens: written_1h },
      reasoning_tokens: reasoning,
    }
    return { ...counts, ...partsWithin(counts, parts) }
  }

  /** Whether the reported counts are those of `usage`. */
  #stands({ prompt_tokens, completion_tokens, total_tokens }: TokenUsage): boolean {
    const { unit, output, isCacheApart } = this.#wanted
    if (unit === 'requests') return true
    const isInput = isCacheApart || prompt_tokens === (this.#input_tokens ?? this.#total_tokens)
    const isOutput = output === null || completion_tokens === this.#output_tokens
    return isInput && isOutput && total_tokens === (this.#total_tokens ?? total_tokens)
  }

  #resetUsage(): void {
    this.#input_tokens = null
    this.#output_tokens = null
    this.#total_tokens = null
    Object.assign(this.#parts, NO_PARTS)
    this.#reported = false
    this.#counts = true
    this.#cost = null
    this.#usage_place = null
  }
}
