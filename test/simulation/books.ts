// Compares the books of a night, at any time of it: also what is counted of chunks that are still open.
import { reconcile } from '../../src/ledger/reconcile.ts'
import { linesOfOpenChunk } from '../../src/results/journal-tallies.ts'
import type { SimulatedRun } from './world.ts'

/** Whatever the ledger, the chunks and their results or journals disagree in, at any time. */
export async function bookViolations(night: Pick<SimulatedRun, 'store' | 'sealed'>): Promise<string[]> {
  const { mismatches } = await reconcile({
    ...night,
    linesOfOpenChunk: (chunk) => linesOfOpenChunk(night, chunk),
  })
  return mismatches.map(({ problem }) => `the books: ${problem}`)
}
