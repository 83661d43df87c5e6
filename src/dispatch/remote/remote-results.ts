// Reads the results of a batch that has ended at a batch API, and finds the line that each belongs to. What such files
// may get wrong costs nothing: a line that is there twice counts once, one that nobody sent is ignored, and one that is
// missing is sent again.

import type { BackendResult } from '../../backends/backend.ts'
import type { BatchApi } from '../../backends/batch-api/batch-api.ts'
import { readResultLine } from '../../backends/batch-api/result-line.ts'
import type { EndpointPath } from '../../domain/endpoint.ts'
import type { RemoteBatchRow } from '../../store/schema.ts'

export interface ResultFaults {
  doubled: number
  unknown: number
  unreadable: number
}

/** Calls `onResult` for the first result of each of the lines in `wanted`, by custom_id; answers first. */
export async function readRemoteResults(
  api: BatchApi,
  { output_file_id, error_file_id }: Pick<RemoteBatchRow, 'output_file_id' | 'error_file_id'>,
  endpoint: EndpointPath,
  wanted: ReadonlySet<string>,
  onResult: (custom_id: string, result: BackendResult) => void | Promise<void>,
  signal: AbortSignal,
): Promise<ResultFaults> {
  const faults: ResultFaults = { doubled: 0, unknown: 0, unreadable: 0 }
  const seen = new Set<string>()
  for (const file_id of [output_file_id, error_file_id]) {
    if (file_id === null) continue
    for await (const line of api.lines(file_id, signal)) {
      const found = readResultLine(line, endpoint)
      if (found === null) faults.unreadable++
      else if (!wanted.has(found.custom_id)) faults.unknown++
      else if (seen.has(found.custom_id)) faults.doubled++
      else {
        seen.add(found.custom_id)
        await onResult(found.custom_id, found.result)
      }
    }
  }
  return faults
}
