// Examines `messages` without parsing it: whether every message has the right form, how much of it is text, and how
// much is media (a picture in base64 is megabytes long and few tokens).
import type { JsonKind, JsonScanner } from './json-scan.ts'
import { Names } from './json-scan-names.ts'
import { type Span, setSpan } from './line-scan-span.ts'

export type MessageProblem =
  | 'not_an_object'
  | 'role_missing'
  | 'role_unknown'
  | 'content_missing'
  | 'content_wrong_type'
  | 'tool_call_id_missing'

export interface MessageFacts extends Readonly<Span> {
  /** Null where `messages` is absent; the span is empty then. */
  readonly kind: JsonKind | null
  readonly count: number
  /** Why the first message that cannot be right is wrong, and its index. */
  readonly problem: MessageProblem | null
  readonly problem_index: number
  /** Bytes of text in `content`, as written: whole strings, and the `text` of parts. */
  readonly text_bytes: number
  /** Parts of `content` without text (images, audio, files): how many, and their bytes. */
  readonly media_parts: number
  readonly media_bytes: number
}

export const ROLES = ['system', 'developer', 'user', 'assistant', 'tool', 'function'] as const
type Role = (typeof ROLES)[number]

const ROLE_NAMES = new Names<Role>(...ROLES)
const KEYS = new Names('role', 'content', 'tool_call_id')
const PART_KEYS = new Names('text', 'refusal')

export class MessagesScan implements MessageFacts {
  kind: JsonKind | null = null
  start = 0
  end = 0
  count = 0
  problem: MessageProblem | null = null
  problem_index = -1
  text_bytes = 0
  media_parts = 0
  media_bytes = 0

  // The content of the message being read; added up at its end, since a second `content` replaces the first.
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
  }

  /** Reads the value that `json` stands at: the messages of a chat, or items, of which not all are messages. */
  scan(json: JsonScanner, role: 'messages' | 'items' = 'messages'): void {
    this.reset()
    const start = json.at
    this.kind = json.kind()
    if (this.kind === 'array') {
      for (let more = json.beginArray(); more; more = json.nextElement()) {
        const isObject = json.kind() === 'object'
        const found = this.#scanMessage(json)
        const problem = role === 'items' && isObject ? null : found
        if (problem !== null && this.problem === null) {
          this.problem = problem
          this.problem_index = this.count
        }
        this.count++
      }
    } else json.skipValue()
    setSpan(this, start, json.at)
  }

  #scanMessage(json: JsonScanner): MessageProblem | null {
    if (json.kind() !== 'object') {
      json.skipValue()
      return 'not_an_object'
    }
    let role: Role | 'unknown' | null = null
    let content: JsonKind | null = null
    let has_call_id = false
    this.#resetContent()
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      switch (json.key(KEYS)) {
        case 'role':
          role = readRole(json)
          break
        case 'content':
          content = json.kind()
          this.#scanContent(json, content)
          break
        case 'tool_call_id':
          has_call_id = json.kind() === 'string'
          json.skipValue()
          break
        default:
          json.skipValue()
      }
    }
    this.text_bytes += this.#text_bytes
    this.media_parts += this.#media_parts
    this.media_bytes += this.#media_bytes
    return problemOf(role, content, has_call_id)
  }

  #resetContent(): void {
    this.#text_bytes = 0
    this.#media_parts = 0
    this.#media_bytes = 0
  }

  #scanContent(json: JsonScanner, kind: JsonKind | null): void {
    this.#resetContent()
    if (kind === 'string') {
      if (json.readString()) this.#text_bytes = json.text_end - json.text_start
    } else if (kind === 'array') {
      for (let more = json.beginArray(); more; more = json.nextElement()) this.#scanPart(json)
    } else json.skipValue()
  }

  #scanPart(json: JsonScanner): void {
    const start = json.at
    let text_bytes = -1
    const kind = json.kind()
    if (kind === 'object') {
      for (let more = json.beginObject(); more; more = json.nextMember()) {
        if (json.key(PART_KEYS) !== null && json.kind() === 'string') {
          if (json.readString()) text_bytes = json.text_end - json.text_start
        } else json.skipValue()
      }
    } else {
      json.skipValue()
      if (kind === 'string') text_bytes = json.at - start
    }
    if (text_bytes >= 0) this.#text_bytes += text_bytes
    else {
      this.#media_parts++
      this.#media_bytes += json.at - start
    }
  }
}

function readRole(json: JsonScanner): Role | 'unknown' {
  if (json.kind() === 'string') {
    json.readString()
    return json.text(ROLE_NAMES) ?? 'unknown'
  }
  json.skipValue()
  return 'unknown'
}

function problemOf(
  role: Role | 'unknown' | null,
  content: JsonKind | null,
  has_call_id: boolean,
): MessageProblem | null {
  if (role === null) return 'role_missing'
  if (role === 'unknown') return 'role_unknown'
  if (content === null || content === 'null') {
    // An assistant that only called tools has said nothing.
    if (role !== 'assistant' && role !== 'function') return 'content_missing'
  } else if (content !== 'string' && content !== 'array') return 'content_wrong_type'
  return role === 'tool' && !has_call_id ? 'tool_call_id_missing' : null
}
