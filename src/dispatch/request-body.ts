// What is sent of a line.
import type { Run } from './run.ts'

/** How an upstream wants bodies. */
export interface BodyForm {
  /** The JSON string that replaces `model`; null to leave it. */
  readonly modelJson: Buffer | null
  /** Takes the place of the brace that ends the body; null to leave it. */
  readonly bodyEnd: Buffer | null
}

/**
 * The line's own bytes. Only where the server knows the model by another name is that name set in, and where lines are
 * to have a priority, it is added at the end.
 */
export function requestBody(run: Run, position: number, { modelJson, bodyEnd }: BodyForm): Uint8Array {
  const { bytes } = run
  const { body, model_spans } = run.lines[position]!
  if (modelJson === null && bodyEnd === null) return bytes.subarray(body.start, body.end)
  const pieces: Uint8Array[] = []
  let at = body.start
  for (const span of modelJson === null ? [] : model_spans) {
    pieces.push(bytes.subarray(at, span.start), modelJson!)
    at = span.end
  }
  if (bodyEnd === null) pieces.push(bytes.subarray(at, body.end))
  else pieces.push(bytes.subarray(at, body.end - 1), bodyEnd)
  return Buffer.concat(pieces)
}
