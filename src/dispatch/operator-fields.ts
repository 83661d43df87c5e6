// Sets fields that the operator prescribes for the bodies of all lines of an upstream. They replace the fields of a
// line.
import { JsonScanner, Names, type Span } from '../jsonl/json-scan.ts'

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
