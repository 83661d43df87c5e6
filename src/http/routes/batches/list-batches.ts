// GET /v1/batches
import { Type } from 'typebox'
import { BATCH_STATUSES, type BatchStatus } from '../../../domain/batch.ts'
import { type BatchProgress, readBatchProgress } from '../../../progress/read-batch-progress.ts'
import { listBatches, readBatch } from '../../../store/batches.ts'
import { BatchObject } from '../../../wire/batch.ts'
import { listOf, PageQuery } from '../../../wire/list.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { readPage } from '../../request/page.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showBatch } from './show-batch.ts'

export function listBatchesRoute(
  app: App,
  { store, clock, region, models }: Pick<RouteDependencies, 'store' | 'clock' | 'region' | 'models'>,
): void {
  const status = Type.Unsafe<BatchStatus>({ type: 'string', enum: [...BATCH_STATUSES] })
  route(app, {
    method: 'GET',
    url: '/v1/batches',
    access: ['batches:read'],
    doc: {
      operation: 'listBatches',
      summary: 'List batches',
      answer: listOf(BatchObject, 'BatchList'),
      errors: ['cursor_not_found'],
    },
    accepts: {
      querystring: Type.Object({
        ...PageQuery,
        status: Type.Optional(status),
        model: Type.Optional(
          Type.String({
            description:
              'Only batches with a line of this model; of batches with more than 100 models, none.',
          }),
        ),
      }),
    },
    async handler(request) {
      const { project_id } = callerOf(request)
      const { status, model, ...page } = request.query
      let batchProgress = new Map<string, BatchProgress>()
      return await readPage(page, {
        exists: async (id) => (await readBatch(store.read, project_id, id)) !== undefined,
        list: async (bounds) => {
          const found = await listBatches(store.read, project_id, { ...bounds, status, model })
          batchProgress = await readBatchProgress(store, found.rows, clock.now(), models)
          return found
        },
        show: (batch) => showBatch(batch, viewOf(request, region), batchProgress.get(batch.id)),
      })
    },
  })
}
