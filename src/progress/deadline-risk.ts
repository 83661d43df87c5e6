// Which batches may miss their deadline at the rate at which they get on: their chunks go before everybody's.
import { progressOf } from '../domain/progress.ts'
import { listPaces } from '../store/batches.ts'
import type { Reader } from '../store/store.ts'

/** Those whose windows close first; what lies far ahead has time to be looked at later. */
const BATCHES_MAX = 1_000
/** Beyond it, hardly anything would be left to be put behind them. */
const AT_RISK_MAX = 100

/** Their IDs, nearest deadline first. */
export async function batchesAtRisk(db: Reader, now: number): Promise<string[]> {
  const paces = await listPaces(db, BATCHES_MAX)
  const progresses = paces.map((pace) => progressOf(pace, now))
  const rates = progresses.map(({ lines_per_s }) => lines_per_s).filter((rate) => rate !== null)
  const together = rates.length > 0 ? rates.reduce((sum, rate) => sum + rate, 0) : null
  return paces
    .filter((pace) => progressOf(pace, now, together).at_risk)
    .slice(0, AT_RISK_MAX)
    .map((pace) => pace.id)
}
