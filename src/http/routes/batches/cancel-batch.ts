// POST /v1/batches/{batch_id}/cancel
import { cancelBatch } from '../../../lifecycle/cancel-batch.ts'
import { BatchObject } from '../../../wire/batch.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { BatchParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showBatch } from './show-batch.ts'

type Deps = Pick<RouteDependencies, 'store' | 'clock' | 'region' | 'wake'>

export function cancelBatchRoute(app: App, { store, clock, region, wake }: Deps): void {
  route(app, {
    method: 'POST',
    url: '/v1/batches/:batch_id/cancel',
    access: ['batches:write'],
    doc: {
      operation: 'cancelBatch',
      summary: 'Cancel a batch',
      description: 'No further line is sent; lines in flight may finish. Finished lines are kept and billed.',
      answer: BatchObject,
      errors: ['batch_not_found', 'batch_not_cancellable'],
    },
    accepts: { params: BatchParams },
    async handler(request) {
      const { project_id } = callerOf(request)
      const { batch_id } = request.params
      const batch = await store.write((tx) => cancelBatch(tx, project_id, batch_id, clock.now()))
      wake()
      return showBatch(batch, viewOf(request, region))
    },
  })
}
