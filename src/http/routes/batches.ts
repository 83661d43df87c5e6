// Batches: listed, read, cancelled, paused and resumed.
import { Type } from 'typebox'
import { BATCH_STATUSES, type BatchStatus } from '../../domain/batch.ts'
import { ApiError } from '../../domain/errors.ts'
import { cancelBatch, setBatchPaused } from '../../lifecycle/stop-batch.ts'
import { type BatchProgress, readBatchProgress } from '../../progress/read-batch-progress.ts'
import { listBatches, readBatch } from '../../store/batches.ts'
import type { BatchRow } from '../../store/schema.ts'
import type { Reader } from '../../store/store.ts'
import { BatchObject } from '../../wire/batch.ts'
import { listOf, PageQuery } from '../../wire/list.ts'
import { callerOf } from '../access/caller.ts'
import { viewOf } from '../access/compat.ts'
import { readPage } from '../request/page.ts'
import { BatchParams } from '../request/params.ts'
import { route } from '../route.ts'
import type { RouteDependencies } from '../route-dependencies.ts'
import type { App } from '../type-provider.ts'
import { showBatch } from './show-batch.ts'

const ACTIONS = [
  {
    action: 'pause',
    operation: 'pauseBatch',
    summary: 'Pause a batch',
    description:
      'Nothing new is sent until it is resumed; what is in flight may finish. Its window goes on: `expires_at` stays.',
  },
  {
    action: 'resume',
    operation: 'resumeBatch',
    summary: 'Resume a paused batch',
    description: 'Its lines are sent again.',
  },
] as const

type Deps = Pick<RouteDependencies, 'store' | 'clock' | 'region' | 'models' | 'wake'>

export function batchRoutes(app: App, { store, clock, region, models, wake }: Deps): void {
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

  for (const { action, operation, summary, description } of ACTIONS) {
    route(app, {
      method: 'POST',
      url: `/v1/batches/:batch_id/${action}`,
      access: ['batches:write'],
      doc: {
        operation,
        summary,
        description,
        answer: BatchObject,
        errors: ['batch_not_found', 'batch_not_pausable'],
      },
      accepts: { params: BatchParams },
      async handler(request) {
        const { project_id } = callerOf(request)
        const which = { project_id, id: request.params.batch_id }
        const batch = await store.write((tx) => setBatchPaused(tx, which, action === 'pause', clock.now()))
        wake()
        return showBatch(batch, viewOf(request, region))
      },
    })
  }
}

/** The batch that a call names, as far as the caller's project can see it. Throws batch_not_found. */
export async function visibleBatch(read: Reader, project_id: string, batch_id: string): Promise<BatchRow> {
  const batch = await readBatch(read, project_id, batch_id)
  if (!batch) throw new ApiError('batch_not_found')
  return batch
}
