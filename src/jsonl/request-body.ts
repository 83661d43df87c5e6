// Makes the request body that is sent for a line: its own bytes, but for the fields that its upstream sets, the changes of a
// reask, and values that servers may reject.
import { withMessages, withOtherSeed } from './ask-again.ts'
import type { ChunkLine } from './chunk-lines.ts'
import { withMembers } from './json-members.ts'
import { Names } from './json-scan.ts'

/** The changes that an upstream makes to bodies. */
interface BodyForm {
  /** The JSON string that replaces `model`; null to leave it. */
  readonly modelJson: Buffer | null
  /** The fields that the operator sets; null to leave all other fields. */
  readonly operatorFields: OperatorFields | null
}

/**
 * The line's own bytes, except for the fields that the form sets and the changes of a reask. `leftMs`: until the line's
 * window ends; it counts where the form has a priority.
 */
export function requestBody(
  source: Buffer,
  line: Pick<ChunkLine, 'body' | 'model_spans' | 'replaced'>,
  form: BodyForm,
  leftMs: number,
  reask: { messages: Buffer | null; asked: number } | null = null,
): Uint8Array {
  const body = formedBody(source, line, form, leftMs)
  if (reask === null) return body
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  return reask.messages ? withMessages(bytes, reask.messages) : withOtherSeed(bytes, reask.asked)
}

function formedBody(
  bytes: Buffer,
  { body, model_spans, replaced }: Parameters<typeof requestBody>[1],
  { modelJson, operatorFields }: BodyForm,
  leftMs: number,
): Uint8Array {
  if (operatorFields !== null || replaced !== null) {
    const values = new Map<string, Uint8Array>(replaced ?? [])
    if (modelJson !== null) values.set('model', modelJson)
    if (operatorFields !== null) addOperatorFields(operatorFields, values, leftMs)
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
