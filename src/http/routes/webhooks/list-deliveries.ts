// GET /v1/webhooks/{webhook_id}/deliveries
import { Type } from 'typebox'
import { ApiError } from '../../../domain/errors.ts'
import { listDeliveries, readDelivery, readWebhook } from '../../../store/webhooks.ts'
import { listOf, PageQuery } from '../../../wire/list.ts'
import { DeliveryObject, DeliveryStatusShape } from '../../../wire/webhook.ts'
import { callerOf } from '../../access/caller.ts'
import { readPage } from '../../request/page.ts'
import { WebhookParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showDelivery } from './show-webhook.ts'

export function listDeliveriesRoute(app: App, { store }: Pick<RouteDependencies, 'store'>): void {
  route(app, {
    method: 'GET',
    url: '/v1/webhooks/:webhook_id/deliveries',
    access: ['webhooks:read', 'webhooks:write'],
    doc: {
      operation: 'listWebhookDeliveries',
      summary: 'List the deliveries of a webhook',
      answer: listOf(DeliveryObject, 'WebhookDeliveryList'),
      errors: ['webhook_not_found', 'cursor_not_found'],
    },
    accepts: {
      params: WebhookParams,
      querystring: Type.Object({ ...PageQuery, status: Type.Optional(DeliveryStatusShape) }),
    },
    async handler(request) {
      const id = request.params.webhook_id
      const { status, ...page } = request.query
      if (!(await readWebhook(store.read, callerOf(request).project_id, id)))
        throw new ApiError('webhook_not_found')
      return await readPage(page, {
        exists: async (cursor) => (await readDelivery(store.read, id, cursor)) !== undefined,
        list: (bounds) => listDeliveries(store.read, id, { ...bounds, status }),
        show: showDelivery,
      })
    },
  })
}
