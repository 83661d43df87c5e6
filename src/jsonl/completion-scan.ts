// Scans a chat completion in place: whether it is valid, its usage, and where to insert its cost. Every byte is
// checked, and no objects are created: the result file gets the same bytes that the server sent.

import type { TokenUsage } from '../domain/money.ts'
import { JsonScanner } from './json-scan.ts'
import { Names } from './json-scan-names.ts'
import { type Span, setSpan } from './line-scan-span.ts'

export interface Completion {
  /** Null where the server reports none, or one that is no set of counts. */
  usage: TokenUsage | null
  /** Whether one was reported, and is no set of counts. */
  isUsageRejected: boolean
  /** The value of `choices`: what the model said. */
  choices: Span
  /** Bytes of the messages in its choices, as written. */
  message_bytes: number
  cost: CostPlace
  /** Where the whole usage stands, or would stand. */
  usage_place: CostPlace
}

/**
 * Where `cost_usd` goes: the bytes from `start` to `end` give way to
 * - `cost`: the value alone, for the answer has a cost already;
 * - `member`: the member `cost_usd`, inside the usage;
 * - `usage`: a whole usage, in place of one that is no set of counts;
 * - `usage_member`: the member `usage`, for the answer has none.
 * `comma`: whether other members stand before it.
 */
export interface CostPlace {
  start: number
  end: number
  kind: 'cost' | 'member' | 'usage' | 'usage_member'
  comma: boolean
}

const KEYS = new Names('choices', 'usage')
const CHOICE_KEYS = new Names('index', 'message', 'finish_reason')
const MESSAGE_KEYS = new Names('role', 'content', 'tool_calls')
const USAGE_KEYS = new Names('prompt_tokens', 'completion_tokens', 'total_tokens', 'cost_usd')
/** Finish reasons of a generation that broke off on the server's side: its text is not the answer. */
const INTERRUPTED = new Names('abort', 'error')
/** No answer takes more of either; what says so is a fault, such as -1 in 32 bits, and is not to be billed. */
const TOKENS_MAX = 100_000_000

export class CompletionScanner {
  readonly #json = new JsonScanner()
  readonly #choices: Span = { start: 0, end: 0 }
  readonly #indexes = new Set<number>()
  #message_bytes = 0
  #prompt_tokens: number | null = null
  #completion_tokens: number | null = null
  #total_tokens: number | null = null
  #reported = false
  /** Whether each count that was reported is one. */
  #counts = true
  #cost: CostPlace | null = null
  #usage_place: CostPlace | null = null

  /** What `bytes` hold, valid UTF-8 all of it; null if that is no completion. */
  scan(bytes: Buffer): Completion | null {
    const json = this.#json
    json.open(bytes, 0, bytes.length)
    if (json.kind() !== 'object') return null
    this.#resetUsage()
    this.#message_bytes = 0
    let hasChoices = false
    let isEmpty = true
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      isEmpty = false
      const key = json.key(KEYS)
      // Of a member given twice, the last counts, as with JSON.parse.
      if (key === 'choices') hasChoices = this.#scanChoices()
      else if (key === 'usage') this.#scanUsage()
      else json.skipValue()
    }
    const brace = json.at - 1
    json.finish()
    if (json.fault !== null || !hasChoices) return null
    const none: CostPlace = { start: brace, end: brace, kind: 'usage_member', comma: !isEmpty }
    const usage = this.#usage()
    const usage_place = this.#usage_place ?? none
    return {
      usage,
      isUsageRejected: usage === null && this.#reported,
      choices: { ...this.#choices },
      message_bytes: this.#message_bytes,
      cost: usage === null ? usage_place : (this.#cost ?? none),
      usage_place,
    }
  }

  /** Whether there is a choice, and each has a message that is whole and an index of its own, if any. */
  #scanChoices(): boolean {
    const json = this.#json
    const start = json.at
    this.#message_bytes = 0
    this.#indexes.clear()
    if (json.kind() !== 'array') {
      json.skipValue()
      return false
    }
    let choices = 0
    let sound = 0
    for (let more = json.beginArray(); more; more = json.nextElement()) {
      choices++
      if (this.#scanChoice()) sound++
    }
    setSpan(this.#choices, start, json.at)
    return choices > 0 && sound === choices
  }

  #scanChoice(): boolean {
    const json = this.#json
    if (json.kind() !== 'object') {
      json.skipValue()
      return false
    }
    let message_bytes = -1
    let finished = true
    let index: number | null = null
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      const key = json.key(CHOICE_KEYS)
      if (key === 'message') {
        const start = json.at
        message_bytes = this.#scanMessage() ? json.at - start : -1
      } else if (key === 'finish_reason') {
        const kind = json.kind()
        if (kind === 'string') finished = json.readString() && json.text(INTERRUPTED) === null
        else {
          finished = kind === 'null'
          json.skipValue()
        }
      } else if (key === 'index' && json.kind() !== 'null') index = this.#count() ?? -1
      else json.skipValue()
    }
    if (message_bytes === -1 || index === -1) return false
    if (index !== null) {
      if (this.#indexes.has(index)) return false
      this.#indexes.add(index)
    }
    this.#message_bytes += message_bytes
    return finished
  }

  /** Whether the message is an object that says something, what it says being of the right kinds. */
  #scanMessage(): boolean {
    const json = this.#json
    if (json.kind() !== 'object') {
      json.skipValue()
      return false
    }
    let isEmpty = true
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
      json.skipValue()
    }
    return !isEmpty && role && content && calls
  }

  #scanUsage(): void {
    const json = this.#json
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
      switch (json.key(USAGE_KEYS)) {
        case 'prompt_tokens':
          this.#prompt_tokens = this.#count()
          break
        case 'completion_tokens':
          this.#completion_tokens = this.#count()
          break
        case 'total_tokens':
          // Some servers leave the adding up to others.
          this.#counts = json.kind() === 'null'
          this.#total_tokens = this.#count()
          this.#counts ||= this.#total_tokens !== null
          break
        case 'cost_usd': {
          const from = json.at
          json.skipValue()
          own = { start: from, end: json.at, kind: 'cost', comma: false }
          break
        }
        default:
          json.skipValue()
      }
    }
    const brace = json.at - 1
    this.#usage_place = { start, end: json.at, kind: 'usage', comma: false }
    this.#reported = true
    this.#cost = own ?? { start: brace, end: brace, kind: 'member', comma: !isEmpty }
  }

  /** A whole number that may be one of tokens; null for anything else. */
  #count(): number | null {
    if (this.#json.kind() !== 'number') {
      this.#json.skipValue()
      return null
    }
    const value = this.#json.readNumber()
    return Number.isInteger(value) && value >= 0 && value <= TOKENS_MAX ? value : null
  }

  #usage(): TokenUsage | null {
    const prompt_tokens = this.#prompt_tokens
    const completion_tokens = this.#completion_tokens
    if (prompt_tokens === null || completion_tokens === null || !this.#counts) return null
    const total_tokens = this.#total_tokens ?? prompt_tokens + completion_tokens
    return { prompt_tokens, completion_tokens, total_tokens }
  }

  #resetUsage(): void {
    this.#prompt_tokens = null
    this.#completion_tokens = null
    this.#total_tokens = null
    this.#reported = false
    this.#counts = true
    this.#cost = null
    this.#usage_place = null
  }
}
