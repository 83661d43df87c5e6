// Makes the request body that is sent for a line.
import { withMessages, withOtherSeed } from '../jsonl/ask-again.ts'
import type { OperatorFields } from './operator-fields.ts'
import type { Run } from './run.ts'

/** The changes that an upstream makes to bodies. */
export interface BodyForm {
  /** The JSON string that replaces `model`; null to leave it. */
  readonly modelJson: Buffer | null
  /** Null to leave all other fields. */
  readonly operatorFields: OperatorFields | null
}

/** The line's own bytes, except for the fields that the form sets and the changes of a reask. */
export function requestBody(run: Run, position: number, form: BodyForm): Uint8Array {
  const body = formedBody(run, position, form)
  const kept = run.triesOf(position)?.kept
  if (!kept) return body
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  return kept.messages ? withMessages(bytes, kept.messages) : withOtherSeed(bytes, kept.asked)
}

function formedBody(run: Run, position: number, form: BodyForm): Uint8Array {
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
