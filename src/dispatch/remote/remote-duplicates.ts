// Identical requests of batches that send them once: a batch API gets one of them, and the others share its answer when
// that is recorded.
import type { OpenChunk } from '../../results/open-chunk.ts'
import { requestKey } from '../send/duplicates.ts'
import type { Job } from '../send/lane.ts'

/** One line for each request. */
export function distinct(jobs: readonly Job[]): Job[] {
  const seen = new Set<string>()
  return jobs.filter(({ chunk, position }) => {
    const key = requestKey(chunk, position)
    if (key === null) return true
    if (seen.has(key)) return false
    seen.add(key)
    return true
  })
}

/** Lines that wait for the answer of an identical one that a batch API has. */
export function duplicatesOf(chunk: OpenChunk): number[] {
  if (chunk.batch.dedupe === null || chunk.remote.size === 0) return []
  const keys = new Set([...chunk.remote].map((position) => requestKey(chunk, position)))
  return chunk.runnable().filter((position) => {
    const key = requestKey(chunk, position)
    return key !== null && keys.has(key)
  })
}
