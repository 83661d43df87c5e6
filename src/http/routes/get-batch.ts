// GET /v1/batches/{batch_id}
import { Refusal } from '../../domain/errors.ts'
import { readBatch } from '../../store/batches.ts'
import { BatchObject } from '../../wire/batch.ts'
import { readStandings } from '../batch-standing.ts'
import { callerOf } from '../caller-of.ts'
import { BatchParams } from '../params.ts'
import { route } from '../route.ts'
import type { ServerDeps } from '../server.ts'
import { showBatch } from '../show-batch.ts'
import type { App } from '../type-provider.ts'

export function getBatchRoute(
  app: App,
  { store, clock, region }: Pick<ServerDeps, 'store' | 'clock' | 'region'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/batches/:batch_id',
    access: ['batches:read'],
    doc: {
      operation: 'getBatch',
      summary: 'Read how a batch stands',
      answer: BatchObject,
      errors: ['batch_not_found'],
    },
    accepts: { params: BatchParams },
    async handler(request) {
      const batch = await readBatch(store.read, callerOf(request).project_id, request.params.batch_id)
      if (!batch) throw new Refusal('batch_not_found')
      const standings = await readStandings(store, [batch], clock.now())
      return showBatch(batch, region, standings.get(batch.id))
    },
  })
}
