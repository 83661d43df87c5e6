// Makes the request body that is sent for a line: its own bytes, with what its upstream and a reask change in them.
import { withMessages, withOtherSeed } from '../jsonl/ask-again.ts'
import type { ChunkLine } from '../jsonl/chunk-lines.ts'
import { JsonScanner, Names, type Span } from '../jsonl/json-scan.ts'
import type { ChunkRow } from '../store/schema.ts'

/** A run, as far as bodies are made of it. */
interface BodySource {
  readonly bytes: Buffer
  readonly lines: readonly Pick<ChunkLine, 'body' | 'model_spans'>[]
  readonly claim: Pick<ChunkRow, 'deadline'>
  triesOf(position: number): { kept: { messages: Buffer | null; asked: number } | null } | undefined
}

/** The changes that an upstream makes to bodies. */
interface BodyForm {
  /** The JSON string that replaces `model`; null to leave it. */
  readonly modelJson: Buffer | null
  /** Null to leave all other fields. */
  readonly operatorFields: OperatorFields | null
}

/** The line's own bytes, except for the fields that the form sets and the changes of a reask. */
export function requestBody(run: BodySource, position: number, form: BodyForm): Uint8Array {
  const body = formedBody(run, position, form)
  const kept = run.triesOf(position)?.kept
  if (!kept) return body
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  return kept.messages ? withMessages(bytes, kept.messages) : withOtherSeed(bytes, kept.asked)
}

function formedBody(run: BodySource, position: number, form: BodyForm): Uint8Array {
  const { modelJson, operatorFields } = form
  const { bytes } = run
  const { body, model_spans } = run.lines[position]!
  if (operatorFields !== null) return operatorFields.setIn(bytes, body, run.claim.deadline, modelJson)
  if (modelJson === null) return bytes.subarray(body.start, body.end)
  const pieces: Uint8Array[] = []
  let at = body.start
  for (const span of model_spans) {
    pieces.push(bytes.subarray(at, span.start), modelJson)
    at = span.end
  }
  pieces.push(bytes.subarray(at, body.end))
  return Buffer.concat(pieces)
}

// `OperatorFields` sets fields that the operator prescribes for the bodies of all lines of an upstream. They replace the
// fields of a line.

/**
 * What engines answer first: a number is sent as it is; `deadline`: lines whose window ends earlier have the lower
 * number (vLLM, and SGLang with --schedule-low-priority-values-first), `deadline-higher-first`: the higher (SGLang).
 */
export type Priority = number | 'deadline' | 'deadline-higher-first'

const NAMES = new Names('model', 'priority', 'service_tier')
const MINUTE_MS = 60_000

const json = new JsonScanner()

export class OperatorFields {
  readonly #priority: Priority | null
  readonly #service_tier: string | null

  constructor(priority: Priority | null, service_tier: string | null) {
    this.#priority = priority
    this.#service_tier = service_tier
  }

  /** The object at `span` with these fields, and with `modelJson` where that is not null. `deadline`: Unix ms. */
  setIn(bytes: Buffer, span: Span, deadline: number, modelJson: Buffer | null): Uint8Array {
    const values = new Map<string, Uint8Array>()
    if (modelJson !== null) values.set('model', modelJson)
    if (this.#priority !== null)
      values.set('priority', Buffer.from(String(priorityAt(this.#priority, deadline))))
    if (this.#service_tier !== null)
      values.set('service_tier', Buffer.from(JSON.stringify(this.#service_tier)))
    return withValues(bytes, span, values)
  }
}

/**
 * The deadline itself, not the time that is left: a server compares requests that came at different times. Minutes since
 * 1970 fit into 32 bits, and lines that end within the same minute keep the order in which they came.
 */
function priorityAt(priority: Priority, deadline: number): number {
  if (typeof priority === 'number') return priority
  const minutes = Math.floor(deadline / MINUTE_MS)
  return priority === 'deadline' ? minutes : -minutes
}

/** Values that the object has already are replaced where they stand, for some servers refuse a key that comes twice. */
function withValues(
  bytes: Buffer,
  { start, end }: Span,
  values: ReadonlyMap<string, Uint8Array>,
): Uint8Array {
  const pieces: Uint8Array[] = []
  const missing = new Map(values)
  let at = start
  json.open(bytes, start, end)
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const key = json.key(NAMES)
    const value = key === null ? undefined : values.get(key)
    if (key !== null && value !== undefined) {
      missing.delete(key)
      pieces.push(bytes.subarray(at, json.at), value)
    }
    json.skipValue()
    if (value !== undefined) at = json.at
  }
  pieces.push(bytes.subarray(at, end - 1))
  for (const [name, value] of missing) pieces.push(Buffer.from(`,"${name}":`), value)
  pieces.push(bytes.subarray(end - 1, end))
  return Buffer.concat(pieces)
}
