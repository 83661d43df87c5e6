// GET /v1/webhooks
import { Type } from 'typebox'
import { listWebhooks, readWebhook } from '../../../store/webhooks.ts'
import { listOf, PageQuery } from '../../../wire/list.ts'
import { WebhookObject } from '../../../wire/webhook.ts'
import { callerOf } from '../../access/caller.ts'
import { readPage } from '../../request/page.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showWebhook } from './show-webhook.ts'

export function listWebhooksRoute(app: App, { store }: Pick<RouteDependencies, 'store'>): void {
  route(app, {
    method: 'GET',
    url: '/v1/webhooks',
    access: ['webhooks:read', 'webhooks:write'],
    doc: {
      operation: 'listWebhooks',
      summary: 'List webhooks',
      answer: listOf(WebhookObject, 'WebhookList'),
      errors: ['cursor_not_found'],
    },
    accepts: { querystring: Type.Object(PageQuery) },
    async handler(request) {
      const { project_id } = callerOf(request)
      return await readPage(request.query, {
        exists: async (id) => (await readWebhook(store.read, project_id, id)) !== undefined,
        list: (bounds) => listWebhooks(store.read, project_id, bounds),
        show: showWebhook,
      })
    },
  })
}
