// GET /v1/batches/{batch_id}
import { readBatchProgress } from '../../../progress/read-batch-progress.ts'
import { BatchObject } from '../../../wire/batch.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { BatchParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showBatch } from './show-batch.ts'
import { visibleBatch } from './visible-batch.ts'

export function getBatchRoute(
  app: App,
  { store, clock, region, models }: Pick<RouteDependencies, 'store' | 'clock' | 'region' | 'models'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/batches/:batch_id',
    access: ['batches:read'],
    doc: {
      operation: 'getBatch',
      summary: 'Read a batch and its progress',
      answer: BatchObject,
      errors: ['batch_not_found'],
    },
    accepts: { params: BatchParams },
    async handler(request) {
      const batch = await visibleBatch(store.read, callerOf(request).project_id, request.params.batch_id)
      const batchProgress = await readBatchProgress(store, [batch], clock.now(), models)
      return showBatch(batch, viewOf(request, region), batchProgress.get(batch.id))
    },
  })
}
