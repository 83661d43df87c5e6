// Makes the request body that is sent for a line: its own bytes, with what its upstream, a reask and values that servers may refuse change in them.
import { withMessages, withOtherSeed } from '../../jsonl/ask-again.ts'
import type { ChunkLine } from '../../jsonl/chunk-lines.ts'
import { withMembers } from '../../jsonl/json-members.ts'
import { Names } from '../../jsonl/json-scan.ts'
import type { ChunkRow } from '../../store/schema.ts'

/** A run, as far as bodies are made of it. */
interface BodySource {
  readonly bytes: Buffer
  readonly lines: readonly Pick<ChunkLine, 'body' | 'model_spans' | 'replaced'>[]
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

/**
 * The line's own bytes, except for the fields that the form sets and the changes of a reask. `now` counts where the form
 * has a priority.
 */
export function requestBody(run: BodySource, position: number, form: BodyForm, now = 0): Uint8Array {
  const body = formedBody(run, position, form, now)
  const kept = run.triesOf(position)?.kept
  if (!kept) return body
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  return kept.messages ? withMessages(bytes, kept.messages) : withOtherSeed(bytes, kept.asked)
}

function formedBody(run: BodySource, position: number, form: BodyForm, now: number): Uint8Array {
  const { modelJson, operatorFields } = form
  const { bytes } = run
  const { body, model_spans, replaced } = run.lines[position]!
  if (operatorFields !== null || replaced !== null) {
    const values = new Map<string, Uint8Array>(replaced ?? [])
    if (modelJson !== null) values.set('model', modelJson)
    if (operatorFields !== null) addOperatorFields(operatorFields, values, run.claim.deadline - now)
    return withMembers(bytes, body, NAMES, values)
  }
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

/**
 * The priority that engines are asked for: a number is sent as it is; `deadline`: lines whose window ends earlier have the
 * lower number (vLLM, and SGLang with --schedule-low-priority-values-first), `deadline-higher-first`: the higher (SGLang).
 */
export type Priority = number | 'deadline' | 'deadline-higher-first'

const NAMES = new Names('model', 'priority', 'service_tier', 'stream', 'stream_options')
const HOUR_MS = 3_600_000
/** The classes of `deadline`, 1 for the soonest; a last one for all that is later. */
const CLASS_HOURS = [1 / 6, 1, 4, 12, 24]

/** Fields that the operator prescribes for the bodies of all lines of an upstream; they replace the fields of a line. */
export interface OperatorFields {
  readonly priority: Priority | null
  readonly service_tier: string | null
}

/** Adds their JSON to `values`; `leftMs`: until the line's window ends. */
export function addOperatorFields(
  { priority, service_tier }: OperatorFields,
  values: Map<string, Uint8Array>,
  leftMs: number,
): void {
  if (priority !== null) values.set('priority', Buffer.from(String(priorityOf(priority, leftMs))))
  if (service_tier !== null) values.set('service_tier', Buffer.from(JSON.stringify(service_tier)))
}

/**
 * The number that is sent: one of few classes by the time that is left, since SGLang keeps metrics for each priority that
 * it has seen, for good. Requests without a priority count as 0 at vLLM, and so go before all lines.
 */
function priorityOf(priority: Priority, leftMs: number): number {
  if (typeof priority === 'number') return priority
  const later = CLASS_HOURS.findIndex((hours) => leftMs <= hours * HOUR_MS)
  const inOrder = 1 + (later === -1 ? CLASS_HOURS.length : later)
  return priority === 'deadline' ? inOrder : -inOrder
}
