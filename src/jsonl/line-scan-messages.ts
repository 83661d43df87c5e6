// Examines `messages` without parsing it: whether every message has the right form, how much of it is text, and how
// much is media (a picture in base64 is megabytes long and few tokens).
import { type JsonKind, type JsonScanner, Names, type Span, setSpan } from './json-scan.ts'
import { ITEMS, PARTS } from './prompt-bound.ts'

export type MessageProblem = 'not_an_object' | 'role_missing'

const KEYS = new Names('role', 'content', 'type')
const PART_KEYS = new Names('type', 'text', 'refusal', 'thinking', 'input', 'content', 'source')
const PART_NAMES = new Names(...PARTS)
const ITEM_NAMES = new Names(...ITEMS)
const TEXT_SOURCES = new Names('text', 'content')
/** The limit of nesting: a result of a tool holds parts, which may hold a document. */
const PART_DEPTH_MAX = 3

export class MessageFacts implements Span {
  /** The kind of `messages`; null where it is absent, and then the span is empty. */
  kind: JsonKind | null = null
  start = 0
  end = 0
  count = 0
  /** The first invalid message: its fault and its index. */
  problem: MessageProblem | null = null
  problem_index = -1
  /** Bytes of text in `content`, as written: whole strings, and the `text` of parts. */
  text_bytes = 0
  /** Media parts of `content` (images, audio, files): their number and their bytes. */
  media_parts = 0
  media_bytes = 0
  /** Whether parts or items have kinds that prompt-bound.ts does not know: they may refer to content elsewhere. */
  hasOthers = false

  // Sums over the current message; added at its end, since a second `content` replaces the first.
  #text_bytes = 0
  #media_parts = 0
  #media_bytes = 0

  reset(): void {
    this.kind = null
    setSpan(this, 0, 0)
    this.count = 0
    this.problem = null
    this.problem_index = -1
    this.text_bytes = 0
    this.media_parts = 0
    this.media_bytes = 0
    this.hasOthers = false
  }

  /** Reads the messages of a chat, or the items of a response, at which `json` is. */
  scan(json: JsonScanner, role: 'messages' | 'items' = 'messages'): void {
    this.reset()
    const start = json.at
    this.kind = json.kind()
    for (let more = json.beginArray(); more; more = json.nextElement()) {
      const isObject = json.kind() === 'object'
      const found = this.#scanMessage(json, role)
      const problem = isObject ? (role === 'items' ? null : found) : 'not_an_object'
      if (problem !== null && this.problem === null) {
        this.problem = problem
        this.problem_index = this.count
      }
      this.count++
    }
    setSpan(this, start, json.at)
  }

  #scanMessage(json: JsonScanner, of: 'messages' | 'items'): MessageProblem | null {
    let hasRole = false
    this.#resetContent()
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      switch (json.key(KEYS)) {
        case 'role':
          hasRole = json.kind() === 'string'
          json.skipValue()
          break
        case 'content':
          this.#scanContent(json, json.kind())
          break
        case 'type':
          if (json.readWord(ITEM_NAMES) === null && of === 'items') this.hasOthers = true
          break
        default:
          json.skipValue()
      }
    }
    this.text_bytes += this.#text_bytes
    this.media_parts += this.#media_parts
    this.media_bytes += this.#media_bytes
    return hasRole ? null : 'role_missing'
  }

  #resetContent(): void {
    this.#text_bytes = 0
    this.#media_parts = 0
    this.#media_bytes = 0
  }

  #scanContent(json: JsonScanner, kind: JsonKind | null): void {
    this.#resetContent()
    if (kind === 'object') this.#scanPart(json)
    else if (kind === 'array')
      for (let more = json.beginArray(); more; more = json.nextElement()) this.#scanPart(json)
    else if (json.readString()) this.#text_bytes = json.text_end - json.text_start
  }

  /** Scans a part of a message; other parts than texts, calls of tools and their results count as media. */
  #scanPart(json: JsonScanner, depth = 1): void {
    const start = json.at
    let text_bytes = -1
    let isOther = json.kind() !== 'string'
    if (!isOther) {
      json.skipValue()
      text_bytes = json.at - start
    } else
      for (let more = json.beginObject(); more; more = json.nextMember()) {
        const key = json.key(PART_KEYS)
        if (key === null) json.skipValue()
        else if (key === 'type') isOther = json.readWord(PART_NAMES) === null
        else if (key === 'input' || (key === 'source' && json.readTyped(TEXT_SOURCES))) {
          if (key === 'input') json.skipValue()
          text_bytes = Math.max(text_bytes, 0)
        } else if (key === 'content' && json.kind() === 'array') {
          if (depth === PART_DEPTH_MAX) {
            this.hasOthers = true
            json.skipValue()
            continue
          }
          for (let part = json.beginArray(); part; part = json.nextElement()) this.#scanPart(json, depth + 1)
          text_bytes = Math.max(text_bytes, 0)
        } else if (key !== 'source' && json.readString()) text_bytes = json.text_end - json.text_start
      }
    this.hasOthers ||= isOther
    if (text_bytes >= 0) this.#text_bytes += text_bytes
    else {
      this.#media_parts++
      this.#media_bytes += json.at - start
    }
  }
}
