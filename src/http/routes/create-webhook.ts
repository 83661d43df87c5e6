// POST /v1/webhooks
import { Refusal } from '../../domain/errors.ts'
import { newId } from '../../domain/ids.ts'
import { newSigningSecret } from '../../notify/signing-secret.ts'
import { webhookUrl } from '../../notify/webhook-url.ts'
import type { WebhookRow } from '../../store/schema.ts'
import { countWebhooks, insertWebhook } from '../../store/webhooks.ts'
import { CreateWebhook, WebhookWithSecret } from '../../wire/webhook.ts'
import { callerOf } from '../caller-of.ts'
import { refuseIdempotencyKey } from '../idempotency.ts'
import { route } from '../route.ts'
import type { ServerDeps } from '../server.ts'
import { showWebhook } from '../show-webhook.ts'
import type { App } from '../type-provider.ts'

/** The end of a batch writes a delivery for each, in the transaction that ends it. */
const WEBHOOKS_PER_PROJECT_MAX = 20

export function createWebhookRoute(
  app: App,
  { store, clock, webhooks }: Pick<ServerDeps, 'store' | 'clock' | 'webhooks'>,
): void {
  route(app, {
    method: 'POST',
    url: '/v1/webhooks',
    access: ['webhooks:write'],
    doc: {
      operation: 'createWebhook',
      summary: 'Have events sent to a URL',
      description: 'The answer holds the secret that signs them, this once.',
      answer: WebhookWithSecret,
    },
    accepts: { body: CreateWebhook },
    async handler(request) {
      const { project_id } = callerOf(request)
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
        if ((await countWebhooks(tx, project_id)) >= WEBHOOKS_PER_PROJECT_MAX)
          throw new Refusal(
            'invalid_request',
            `A project has at most ${WEBHOOKS_PER_PROJECT_MAX} webhooks; delete one first.`,
          )
        await insertWebhook(tx, row)
      })
      return { ...showWebhook(row), secret: secret.text }
    },
  })
}
