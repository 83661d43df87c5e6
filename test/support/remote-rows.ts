// The rows of remote batches, without batch APIs: no part but the rows does anything.
import { RemoteRows } from '../../src/dispatch/senders/batch-apis/rows.ts'
import type { queuedBatch } from './queued-batch.ts'

type Options = ConstructorParameters<typeof RemoteRows>[0]
type World = Pick<Awaited<ReturnType<typeof queuedBatch>>, 'store' | 'clock'>

export function remoteRows(
  { store, clock }: World,
  funds: Options['funds'] = { setReserved() {} },
  settle: Options['recorder']['settle'] = async () => {},
): RemoteRows {
  return new RemoteRows({
    ...{ store, clock, funds },
    lanes: new Map(),
    lines: { duplicates: { lead() {} }, place() {} },
    retry: { outage_patience_ms: 0 },
    recorder: { settle },
  })
}
