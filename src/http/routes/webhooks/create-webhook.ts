// POST /v1/webhooks
import { newId } from '../../../domain/ids.ts'
import { checkQuotas } from '../../../intake/check-quota.ts'
import { newSigningSecret } from '../../../notify/signing.ts'
import { webhookUrl } from '../../../notify/webhook-url.ts'
import type { WebhookRow } from '../../../store/schema.ts'
import { insertWebhook } from '../../../store/webhooks.ts'
import { CreateWebhook, WEBHOOK_RULES, WebhookWithSecret } from '../../../wire/webhook.ts'
import { callerOf, planOf } from '../../access/caller.ts'
import { refuseIdempotencyKey } from '../../request/idempotency.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showWebhook } from './show-webhook.ts'

export function createWebhookRoute(
  app: App,
  { store, clock, plans, webhooks }: Pick<RouteDependencies, 'store' | 'clock' | 'plans' | 'webhooks'>,
): void {
  route(app, {
    method: 'POST',
    url: '/v1/webhooks',
    access: ['webhooks:write'],
    doc: {
      operation: 'createWebhook',
      summary: 'Create a webhook',
      description:
        'The service sends events to the URL. Only this answer contains the secret that signs them.',
      answer: WebhookWithSecret,
      rules: { body: WEBHOOK_RULES },
      errors: ['quota_exceeded'],
    },
    accepts: { body: CreateWebhook },
    async handler(request) {
      const caller = callerOf(request)
      const { project_id } = caller
      const { quotas } = planOf(plans, caller)
      refuseIdempotencyKey(request.headers)
      const { url, event_types = null, description = null } = request.body
      const now = clock.now()
      const id = newId('webhook', now)
      const secret = newSigningSecret(webhooks.keys, project_id, id)
      const row: WebhookRow = {
        id,
        project_id,
        url: webhookUrl(url, webhooks.allow_private_networks),
        description,
        event_types: event_types === null ? null : JSON.stringify(event_types),
        wrapped_secret: secret.wrapped,
        previous_secret: null,
        previous_until: null,
        disabled_at: null,
        disabled_reason: null,
        created: now,
      }
      await store.write(async (tx) => {
        await checkQuotas(tx, { project_id, quotas }, { webhooks: 1 })
        await insertWebhook(tx, row)
      })
      return { ...showWebhook(row), secret: secret.text }
    },
  })
}
