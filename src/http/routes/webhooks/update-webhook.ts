// POST /v1/webhooks/{webhook_id}
import { ApiError } from '../../../domain/errors.ts'
import { webhookUrl } from '../../../notify/webhook-url.ts'
import type { WebhookRow } from '../../../store/schema.ts'
import { lockWebhook, updateWebhook } from '../../../store/webhooks.ts'
import { UpdateWebhook, WEBHOOK_RULES, WebhookObject } from '../../../wire/webhook.ts'
import { callerOf } from '../../access/caller.ts'
import { WebhookParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showWebhook } from './show-webhook.ts'

export function updateWebhookRoute(
  app: App,
  { store, clock, webhooks }: Pick<RouteDependencies, 'store' | 'clock' | 'webhooks'>,
): void {
  route(app, {
    method: 'POST',
    url: '/v1/webhooks/:webhook_id',
    access: ['webhooks:write'],
    doc: {
      operation: 'updateWebhook',
      summary: 'Change, disable or enable a webhook',
      description:
        'Fields that are left out stay unchanged. Events that happen while a webhook is disabled are never sent to it.',
      answer: WebhookObject,
      rules: { body: WEBHOOK_RULES },
      errors: ['webhook_not_found'],
    },
    accepts: { params: WebhookParams, body: UpdateWebhook },
    async handler(request) {
      const { project_id } = callerOf(request)
      const { url, event_types, description, enabled } = request.body ?? {}
      const row = await store.write(async (tx) => {
        const webhook = await lockWebhook(tx, project_id, request.params.webhook_id)
        if (!webhook) throw new ApiError('webhook_not_found')
        const change: Partial<WebhookRow> = {}
        if (url !== undefined) change.url = webhookUrl(url, webhooks.allow_private_networks)
        if (event_types !== undefined) change.event_types = event_types && JSON.stringify(event_types)
        if (description !== undefined) change.description = description
        if (enabled === true) Object.assign(change, { disabled_at: null, disabled_reason: null })
        if (enabled === false && webhook.disabled_at === null)
          Object.assign(change, { disabled_at: clock.now(), disabled_reason: 'disabled by its owner' })
        return Object.keys(change).length === 0 ? webhook : await updateWebhook(tx, webhook.id, change)
      })
      return showWebhook(row)
    },
  })
}
