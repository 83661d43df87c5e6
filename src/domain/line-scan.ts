// What one line of an input file says, read in a single pass over its bytes. The body is never parsed into
// objects: it goes upstream as the very bytes that were uploaded, and this scan finds where they are and the
// few facts that checking, pricing and grouping need.
import type { ErrorCode } from './errors.ts'

/** A run of bytes: `start` inclusive, `end` exclusive, both indexes into the buffer that was scanned. */
export interface Span {
  start: number
  end: number
}

export type JsonKind = 'object' | 'array' | 'string' | 'number' | 'boolean' | 'null'

/** What is wrong with one message, as the model check words it. */
export type MessageProblem =
  | 'not_an_object'
  | 'role_missing'
  | 'role_unknown'
  | 'content_missing'
  | 'content_wrong_type'
  | 'tool_call_id_missing'

/**
 * A number field of the body: null where it is absent or `null`, NaN where it is something else than a
 * number. The JSON number otherwise, whole or not.
 */
export type NumberField = number | null

/** Facts from the top level of the body; of a key given twice the last one counts, as in JSON.parse. */
export interface BodyFacts {
  /** The bytes of `body`, braces included. */
  readonly span: Span
  /** Null where `model` is absent or no string. */
  readonly model: string | null
  /** The spans of every value of a top-level `model` key, quotes included, in order; more than one if it is given twice. */
  readonly model_spans: readonly Span[]
  readonly max_tokens: NumberField
  readonly max_completion_tokens: NumberField
  readonly n: NumberField
  readonly temperature: NumberField
  /** Kinds are null where the key is absent; spans are empty then. */
  readonly messages_kind: JsonKind | null
  readonly messages: Span
  readonly messages_count: number
  /** The first message that cannot be right: its index and why. */
  readonly message_problem: MessageProblem | null
  readonly message_problem_index: number
  /** Bytes of text in `content` strings and text parts, as written (escapes unresolved). */
  readonly text_bytes: number
  /** Parts of `content` that are no text (images, audio, files): how many, and their bytes. */
  readonly media_parts: number
  readonly media_bytes: number
  readonly tools_kind: JsonKind | null
  readonly tools: Span
  readonly tools_count: number
  /** Index of the first entry of `tools` that is no `{type: "function", function: {name}}`, or -1. */
  readonly tools_problem_index: number
  readonly response_format_kind: JsonKind | null
  readonly response_format: Span
  /** `response_format.type`; null where it is absent or no string. */
  readonly response_format_type: string | null
  /** For `json_schema`: whether it holds an object with a string `name` and no `schema` that is not an object. */
  readonly response_format_schema_ok: boolean
}

/** An input line that is well formed. Valid until the scanner's next scan: copy what must last. */
export interface InputLine {
  readonly ok: true
  /** The buffer that all spans point into. */
  readonly bytes: Buffer
  /** The characters between the quotes of `custom_id`, as written, and whether they hold escapes. */
  readonly custom_id_span: Span
  readonly custom_id_escaped: boolean
  /** Decoded on demand. */
  readonly custom_id: string
  /** `metadata.entity`, or null. */
  readonly entity: string | null
  /** The bytes of `metadata`, or null where it is absent or `null`. */
  readonly metadata_span: Span | null
  /** Parsed on demand; null where it is absent or `null`. */
  readonly metadata: Record<string, string> | null
  readonly body: BodyFacts
}

/** Why a line is refused; it fails the whole file. Valid until the scanner's next scan. */
export interface LineFault {
  readonly ok: false
  readonly code: ErrorCode
  /** Says what is wrong, where (column: characters from 1) and how to mend it. */
  readonly message: string
  readonly param: string | undefined
}

/** Reads lines one after the other; keep one and reuse it. */
export class LineScanner {
  /** Scans the line `bytes[start, end)`, without its line break. The bytes must be valid UTF-8. */
  scan(_bytes: Buffer, _start: number, _end: number): InputLine | LineFault {
    throw new Error('not written yet')
  }
}
