// Writes given lines into the results of a chunk, for tests without a model server.
import { NO_SPEND } from '../../src/domain/money.ts'
import type { ChunkResults, Ended } from '../../src/results/chunk-results.ts'

export interface WrittenLine {
  part: 'output' | 'error'
  result: Buffer
  audit: Buffer
}

/** The line costs nothing, unless `ended` says so. */
export function writeLine(
  results: ChunkResults,
  position: number,
  { part, result, audit }: WrittenLine,
  ended: Partial<Ended> = {},
): void {
  results.begin(position, part, result.length + audit.length)
  results.out.copy(result, 0, result.length)
  results.endResult()
  results.out.copy(audit, 0, audit.length)
  const facts: Ended = {
    part,
    day: 0,
    model: 'm',
    entity: null,
    usage: null,
    cost_nanos: 0,
    projected: NO_SPEND,
    isReserved: false,
    saved_nanos: null,
    failure: null,
    expired: false,
    wasSent: true,
    ...ended,
  }
  results.end(position, facts, 0)
}
