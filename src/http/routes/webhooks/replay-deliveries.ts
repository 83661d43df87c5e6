// POST /v1/webhooks/{webhook_id}/replay
import { ApiError } from '../../../domain/errors.ts'
import { replayEvent, replayFailed } from '../../../notify/replay.ts'
import { lockFailedDeliveries, lockWebhook } from '../../../store/webhooks.ts'
import { ReplayDeliveries, ReplayedDeliveries } from '../../../wire/webhook.ts'
import { callerOf } from '../../access/caller.ts'
import { refuseIdempotencyKey } from '../../request/idempotency.ts'
import { WebhookParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'

export function replayDeliveriesRoute(
  app: App,
  { store, clock, wake }: Pick<RouteDependencies, 'store' | 'clock' | 'wake'>,
): void {
  route(app, {
    method: 'POST',
    url: '/v1/webhooks/:webhook_id/replay',
    access: ['webhooks:write'],
    doc: {
      operation: 'replayWebhookDeliveries',
      summary: 'Send an event again, or all events whose delivery failed',
      description: 'The `webhook-id` stays the same. Delivery is tried for three more days.',
      answer: ReplayedDeliveries,
      errors: ['webhook_not_found', 'event_not_found', 'webhook_disabled'],
    },
    accepts: { params: WebhookParams, body: ReplayDeliveries },
    async handler(request) {
      const { project_id } = callerOf(request)
      refuseIdempotencyKey(request.headers)
      const { event_id } = request.body ?? {}
      const now = clock.now()
      const answer = await store.write(async (tx) => {
        const webhook = await lockWebhook(tx, project_id, request.params.webhook_id)
        if (!webhook) throw new ApiError('webhook_not_found')
        let queued = 1
        if (event_id === undefined) queued = await replayFailed(tx, webhook, now)
        else await replayEvent(tx, webhook, event_id, now)
        const more = await lockFailedDeliveries(tx, webhook.id, 1)
        return { webhook_id: webhook.id, queued, has_more: event_id === undefined && more.length > 0 }
      })
      wake()
      return { object: 'webhook.replay', ...answer }
    },
  })
}
