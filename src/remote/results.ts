// Reads the results of a batch that has ended at a batch API, and finds the line that each belongs to. What such files
// may get wrong costs nothing: a line that is there twice counts once, one that nobody sent is ignored, and one that is
// missing is sent again.

import type { BackendResult } from '../backends/backend.ts'
import type { BatchApi } from '../backends/batch-api/batch-api.ts'
import { readResultLine } from '../backends/batch-api/result-line.ts'
import type { EndpointPath } from '../domain/endpoint.ts'
import type { RemoteBatchRow } from '../store/schema.ts'

export interface ResultFaults {
  doubled: number
  unknown: number
  unreadable: number
}

/** After so many useless lines for each line of the batch, the rest of a file is left unread. */
const USELESS_MAX = 1_000
const USELESS_MIN = 1_000_000

/**
 * Calls `onAnswer` for the answer to each of the lines in `wanted`, by custom_id, and returns what the others came to that
 * have a result. `known`: all lines of the batch, also those whose answers are recorded.
 */
export async function readRemoteResults(
  api: BatchApi,
  { output_file_id, error_file_id }: Pick<RemoteBatchRow, 'output_file_id' | 'error_file_id'>,
  endpoint: EndpointPath,
  { wanted, known }: { wanted: ReadonlySet<string>; known: ReadonlySet<string> },
  onAnswer: (custom_id: string, result: BackendResult) => void | Promise<void>,
  signal: AbortSignal,
): Promise<{ faults: ResultFaults; missed: Map<string, BackendResult> }> {
  const faults: ResultFaults = { doubled: 0, unknown: 0, unreadable: 0 }
  const missed = new Map<string, BackendResult>()
  const seen = new Set<string>()
  const uselessMax = Math.max(USELESS_MIN, known.size * USELESS_MAX)
  for (const file_id of [output_file_id, error_file_id]) {
    if (file_id === null) continue
    for await (const line of api.lines(file_id, signal)) {
      const found = readResultLine(line, endpoint)
      if (found === null) faults.unreadable++
      else if (!known.has(found.custom_id)) faults.unknown++
      else {
        const { custom_id, result } = found
        if (seen.has(custom_id) || missed.has(custom_id)) faults.doubled++
        if (seen.has(custom_id) || !wanted.has(custom_id)) continue
        if (result.kind === 'answered' || result.kind === 'refused') {
          seen.add(custom_id)
          missed.delete(custom_id)
          await onAnswer(custom_id, result)
        } else if (!missed.has(custom_id)) missed.set(custom_id, result)
      }
      if (faults.doubled + faults.unknown + faults.unreadable > uselessMax) break
    }
  }
  return { faults, missed }
}
