// What is sent of a line, and in which order lines are sent.
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Job } from './lane.ts'
import type { Upstream } from './upstream.ts'

/** The line's own bytes; only where the server knows the model by another name is that name set in. */
export function requestBody(job: Job, upstream: Upstream): Uint8Array {
  const { chunk } = job
  const line = chunk.lines[job.position]!
  if (upstream.modelJson === null) return chunk.bytes.subarray(line.body.start, line.body.end)
  const pieces: Uint8Array[] = []
  let at = line.body.start
  for (const span of line.model_spans) {
    pieces.push(chunk.bytes.subarray(at, span.start), upstream.modelJson)
    at = span.end
  }
  pieces.push(chunk.bytes.subarray(at, line.body.end))
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
