// What is sent of a line, and in which order lines are sent.
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Job } from './lane.ts'
import type { Upstream } from './upstream.ts'

/**
 * The line's own bytes. Only where the server knows the model by another name is that name set in, and where lines are
 * to have a priority, it is added at the end.
 */
export function requestBody(job: Job, upstream: Upstream): Uint8Array {
  const { chunk } = job
  const line = chunk.lines[job.position]!
  const { modelJson, bodyEnd } = upstream
  if (modelJson === null && bodyEnd === null) return chunk.bytes.subarray(line.body.start, line.body.end)
  const pieces: Uint8Array[] = []
  let at = line.body.start
  for (const span of modelJson === null ? [] : line.model_spans) {
    pieces.push(chunk.bytes.subarray(at, span.start), modelJson!)
    at = span.end
  }
  if (bodyEnd === null) pieces.push(chunk.bytes.subarray(at, line.body.end))
  else pieces.push(chunk.bytes.subarray(at, line.body.end - 1), bodyEnd)
  return Buffer.concat(pieces)
}

/** Lines that begin alike go one after the other: model servers keep the work of a common prefix. */
export function byPrefix(chunk: OpenChunk, positions: number[]): number[] {
  const { bytes, lines } = chunk
  return positions.sort((a, b) => {
    const left = lines[a]!.prompt
    const right = lines[b]!.prompt
    return bytes.compare(bytes, right.start, right.end, left.start, left.end) || a - b
  })
}

/** Adds a position to those of its model. */
export function pushTo(byModel: Map<string, number[]>, model: string, position: number): void {
  const positions = byModel.get(model)
  if (positions) positions.push(position)
  else byModel.set(model, [position])
}
