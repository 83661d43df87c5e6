// POST /v1/webhooks/{webhook_id}/test
import { ApiError } from '../../../domain/errors.ts'
import { eventObject } from '../../../notify/event-object.ts'
import { recordTestEvent } from '../../../notify/record-event.ts'
import { lockWebhook } from '../../../store/webhooks.ts'
import { EventObject } from '../../../wire/event.ts'
import { callerOf } from '../../access/caller.ts'
import { WebhookParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'

export function testWebhookRoute(
  app: App,
  { store, clock, wake }: Pick<RouteDependencies, 'store' | 'clock' | 'wake'>,
): void {
  route(app, {
    method: 'POST',
    url: '/v1/webhooks/:webhook_id/test',
    access: ['webhooks:write'],
    doc: {
      operation: 'testWebhook',
      summary: 'Send a test event',
      description:
        'An event of the type `webhook.test`, to this webhook alone and whatever types it subscribes to, signed and retried like any other. Its delivery shows what the receiver answered.',
      answer: EventObject,
      errors: ['webhook_not_found', 'webhook_disabled'],
    },
    accepts: { params: WebhookParams },
    async handler(request) {
      const { project_id } = callerOf(request)
      const event = await store.write(async (tx) => {
        const webhook = await lockWebhook(tx, project_id, request.params.webhook_id)
        if (!webhook) throw new ApiError('webhook_not_found')
        if (webhook.disabled_at !== null) throw new ApiError('webhook_disabled')
        return await recordTestEvent(tx, webhook, clock.now())
      })
      wake()
      return eventObject(event)
    },
  })
}
