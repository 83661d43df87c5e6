// Reconciles the ledger at any time of a run, chunks that are still open included.
import { reconcile } from '../../src/ledger/reconcile.ts'
import { linesOfOpenChunk } from '../../src/results/journal-tallies.ts'
import type { SimulatedRun } from './run.ts'

/** Every mismatch between the ledger, the chunks and their results or journals. */
export async function ledgerViolations(run: Pick<SimulatedRun, 'store' | 'sealed'>): Promise<string[]> {
  const { mismatches } = await reconcile({
    ...run,
    linesOfOpenChunk: (chunk) => linesOfOpenChunk(run, chunk),
  })
  return mismatches.map(({ problem }) => `the ledger: ${problem}`)
}
