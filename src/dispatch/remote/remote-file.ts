// What a batch API is sent: a file of requests. A line's `custom_id` there is its request ID here, so its record there
// names the line; the caller's own custom_id stays here, as it need not be unique among several batches.
import type { EndpointPath } from '../../domain/endpoint.ts'
import { base32 } from '../../domain/ids.ts'
import type { OpenChunk } from '../../results/open-chunk.ts'
import type { Job } from '../send/lane.ts'
import { requestBody } from '../send/line-request.ts'
import type { Upstream } from '../send/upstream.ts'

const NEWLINE = Buffer.from('}\n')

/** `lineMetadata`: with entity, tags and conversation of each line. */
export function fileOf(jobs: readonly Job[], upstream: Upstream, lineMetadata: boolean): Uint8Array[] {
  return jobs.flatMap((job) => {
    const { chunk, position } = job
    const { line, endpoint, entity, tags, conversation } = chunk.lines[position]!
    const known = Object.entries({ entity, tags, conversation }).filter(([, value]) => value !== null)
    const metadata =
      lineMetadata && known.length > 0 ? `"metadata":${JSON.stringify(Object.fromEntries(known))},` : ''
    const id = chunk.requestIdPrefix + base32(line)
    const head = `{"custom_id":"${id}","method":"POST","url":"${endpoint}",${metadata}"body":`
    return [Buffer.from(head), requestBody(job, upstream), NEWLINE]
  })
}

/** Of the whole batch, for whoever looks at it there. */
export function metadataOf({ batch, claim }: OpenChunk): Record<string, string> {
  return { offpeak_batch: batch.id, offpeak_chunk: String(claim.idx) }
}

export function endpointOf(chunk: OpenChunk, jobs: readonly Job[]): EndpointPath {
  return chunk.lines[jobs[0]?.position ?? 0]!.endpoint
}
