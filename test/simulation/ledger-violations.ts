// Reconciles the ledger at any time of a run, chunks that are still open included.
import { reconcile } from '../../src/admin/reconcile.ts'
import type { SimulatedRun } from './run.ts'

/** Every mismatch between the ledger, the chunks and their results or journals, but those of the batches `except`. */
export async function ledgerViolations(
  run: Pick<SimulatedRun, 'store' | 'sealed'>,
  except: ReadonlySet<string> = new Set(),
): Promise<string[]> {
  const { mismatches } = await reconcile(run)
  return mismatches
    .filter(({ batch_id }) => batch_id === null || !except.has(batch_id))
    .map(({ problem }) => `the ledger: ${problem}`)
}
