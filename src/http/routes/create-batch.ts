// POST /v1/batches
import { negotiateLanguage } from '../../domain/language.ts'
import { createBatch, orderBatch } from '../../intake/create-batch.ts'
import { BatchObject, CreateBatch } from '../../wire/batch.ts'
import { callerOf } from '../caller-of.ts'
import { headerText } from '../header-text.ts'
import { planOf } from '../plan-of.ts'
import { route } from '../route.ts'
import type { ServerDeps } from '../server.ts'
import { showBatch } from '../show-batch.ts'
import type { App } from '../type-provider.ts'

const ENTITY_CHARACTERS_MAX = 512

type Deps = Pick<ServerDeps, 'store' | 'clock' | 'region' | 'plans' | 'wake'>

export function createBatchRoute(app: App, { store, clock, region, plans, wake }: Deps): void {
  route(app, {
    method: 'POST',
    url: '/v1/batches',
    access: ['batches:write'],
    doc: {
      operation: 'createBatch',
      summary: 'Create a batch',
      answer: BatchObject,
      errors: ['plan_lacks_feature', 'file_not_found', 'file_not_processed'],
    },
    accepts: { body: CreateBatch },
    async handler(request) {
      const caller = callerOf(request)
      const header_entity = headerText(request.headers, 'X-Service-Entity', ENTITY_CHARACTERS_MAX)
      const owner = {
        project_id: caller.project_id,
        key_id: caller.key_id,
        header_entity,
        language: negotiateLanguage(request.headers['accept-language']),
      }
      request.entity = request.body.metadata?.entity || header_entity
      const order = orderBatch(request.body, owner, planOf(plans, caller))
      const batch = await store.write((tx) => createBatch(tx, order, clock.now()))
      wake()
      return showBatch(batch, region)
    },
  })
}
