// POST /v1/webhooks/{webhook_id}/rotate_secret
import { ApiError } from '../../../domain/errors.ts'
import { newSigningSecret } from '../../../notify/signing.ts'
import { lockWebhook, updateWebhook } from '../../../store/webhooks.ts'
import { ROTATION_OVERLAP_S_DEFAULT, RotateSecret, WebhookWithSecret } from '../../../wire/webhook.ts'
import { callerOf } from '../../access/caller.ts'
import { refuseIdempotencyKey } from '../../request/idempotency.ts'
import { WebhookParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showWebhook } from './show-webhook.ts'

export function rotateWebhookSecretRoute(
  app: App,
  { store, clock, webhooks }: Pick<RouteDependencies, 'store' | 'clock' | 'webhooks'>,
): void {
  route(app, {
    method: 'POST',
    url: '/v1/webhooks/:webhook_id/rotate_secret',
    access: ['webhooks:write'],
    doc: {
      operation: 'rotateWebhookSecret',
      summary: 'Replace the secret of a webhook',
      description:
        'Only this answer contains the new secret. Until the overlap ends, requests are signed with both secrets.',
      answer: WebhookWithSecret,
      errors: ['webhook_not_found'],
    },
    accepts: { params: WebhookParams, body: RotateSecret },
    async handler(request) {
      const { project_id } = callerOf(request)
      refuseIdempotencyKey(request.headers)
      const id = request.params.webhook_id
      const { overlap_seconds = ROTATION_OVERLAP_S_DEFAULT } = request.body ?? {}
      const secret = newSigningSecret(webhooks.keys, project_id, id)
      const row = await store.write(async (tx) => {
        const webhook = await lockWebhook(tx, project_id, id)
        if (!webhook) throw new ApiError('webhook_not_found')
        return await updateWebhook(tx, id, {
          wrapped_secret: secret.wrapped,
          previous_secret: webhook.wrapped_secret,
          previous_until: clock.now() + overlap_seconds * 1000,
        })
      })
      return { ...showWebhook(row), secret: secret.text }
    },
  })
}
