// GET /v1/webhooks/{webhook_id}
import { ApiError } from '../../../domain/errors.ts'
import { readWebhook } from '../../../store/webhooks.ts'
import { WebhookObject } from '../../../wire/webhook.ts'
import { callerOf } from '../../access/caller.ts'
import { WebhookParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showWebhook } from './show-webhook.ts'

export function getWebhookRoute(app: App, { store }: Pick<RouteDependencies, 'store'>): void {
  route(app, {
    method: 'GET',
    url: '/v1/webhooks/:webhook_id',
    access: ['webhooks:read', 'webhooks:write'],
    doc: {
      operation: 'getWebhook',
      summary: 'Read a webhook',
      answer: WebhookObject,
      errors: ['webhook_not_found'],
    },
    accepts: { params: WebhookParams },
    async handler(request) {
      const webhook = await readWebhook(store.read, callerOf(request).project_id, request.params.webhook_id)
      if (!webhook) throw new ApiError('webhook_not_found')
      return showWebhook(webhook)
    },
  })
}
