// POST /v1/batches/{batch_id}/pause and …/resume
import { setBatchPaused } from '../../../lifecycle/pause-batch.ts'
import { BatchObject } from '../../../wire/batch.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { BatchParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showBatch } from './show-batch.ts'

type Deps = Pick<RouteDependencies, 'store' | 'clock' | 'region' | 'wake'>

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

export function pauseBatchRoutes(app: App, { store, clock, region, wake }: Deps): void {
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
