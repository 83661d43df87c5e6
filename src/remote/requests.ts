// Makes the requests of a remote batch. A line's `custom_id` there is its request ID here, so its record there names
// the line; the caller's own custom_id is not sent, as several batches may share it.
import type { BatchRequest } from '../backends/batch-api/batch-api.ts'
import { type BodyForm, requestBody } from '../dispatch/request-body.ts'
import type { Run } from '../dispatch/run.ts'
import type { EndpointPath } from '../domain/endpoint.ts'
import { base32 } from '../domain/ids.ts'

/** The name of a line at a batch API. */
export function remoteIdOf(run: Run, position: number): string {
  return remoteId(run, run.lines[position]!.line)
}

export function remoteId({ requestIdPrefix }: Pick<Run, 'requestIdPrefix'>, line: number): string {
  return requestIdPrefix + base32(line)
}

/** In the order of `positions`. `lineMetadata`: with entity, tags and conversation of each line. */
export function batchRequests(
  run: Run,
  positions: readonly number[],
  form: BodyForm,
  lineMetadata: boolean,
): BatchRequest[] {
  return positions.map((position) => {
    const { endpoint, entity, tags, conversation } = run.lines[position]!
    const known = Object.entries({ entity, tags, conversation }).filter(([, value]) => value !== null)
    const metadata = lineMetadata && known.length > 0 ? Object.fromEntries(known) : null
    return {
      custom_id: remoteIdOf(run, position),
      endpoint,
      metadata,
      body: requestBody(run, position, form),
    }
  })
}

/** The metadata of the whole remote batch, for people who see it there. */
export function requestMetadata({ batch, claim }: Run): Record<string, string> {
  return { offpeak_batch: batch.id, offpeak_chunk: String(claim.idx) }
}

export function endpointOf(run: Run, positions: readonly number[]): EndpointPath {
  return run.lines[positions[0] ?? 0]!.endpoint
}
